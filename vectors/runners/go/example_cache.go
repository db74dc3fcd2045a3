// The cache that run_vectors.go plays vectors on: an example, and yours goes in its place.
// Copyright: the authors of pymllm. Licence: Apache-2.0.
package main

import (
	"fmt"
	"sort"
	"strings"
)

const kind, claims = "prefix", `"pool", "extra_key", "exact_lru"`

type page struct {
	slots       []int
	used, holds int
}

// pageCache has pages of slots by prefix, in a pool of its own; the least recent page at an end goes first.
type pageCache struct {
	size  int
	free  []int
	pages map[string]*page // by a namespace and the tokens up to their ends
	nodes map[int]string   // by step: the prefix that it returned
}

// build returns a cache; none where it cannot be built so.
func build(config string) cache {
	fields := itemsOf(config)
	isStrange := func(at int) bool {
		return !strings.Contains("page_size slots swa_slots window pool check_ownership", fields[at].name)
	}
	size, slots := numberOf(config, "page_size"), numberOf(config, "slots")
	isPool := get(config, "window") == "null" && textOf(config, "pool") == "token"
	if find(len(fields), isStrange) >= 0 || !isPool || size == 0 {
		return nil
	}
	made := &pageCache{size, nil, map[string]*page{}, map[int]string{}}
	for slot := size; slot < size+slots; slot++ { // page 0 is for padding
		made.free = append(made.free, slot)
	}
	return made.apply
}

// apply carries an operation out; slots in it are numbers, nodes and holds the steps that returned them.
func (my *pageCache) apply(step int, op string) string {
	name, wanted, freed, result := textOf(op, "op"), numberOf(op, "tokens"), []int{}, `"done"`
	switch name {
	case "match", "insert":
		result = my.walk(step, op, name == "insert")
	case "evict":
		for oldest := my.oldest(); oldest != "" && len(freed) < wanted; oldest = my.oldest() {
			freed = append(freed, my.pages[oldest].slots...)
			delete(my.pages, oldest)
		}
		result = fmt.Sprintf(`"evicted","full":%d`, len(freed))
	case "lock":
		my.nodes[step] = my.nodes[numberOf(op, "of")]
		my.hold(my.nodes[step], 1)
		result = `"locked"`
	case "unlock":
		my.hold(my.nodes[numberOf(op, "lock")], -1)
	case "reset":
		prefixes := []string{}
		for prefix := range my.pages {
			prefixes = append(prefixes, prefix)
		}
		sort.Strings(prefixes)
		for _, prefix := range prefixes {
			freed = append(freed, my.pages[prefix].slots...)
			delete(my.pages, prefix)
		}
	case "alloc":
		count := (wanted + my.size - 1) / my.size * my.size
		if result = `"no_room"`; count <= len(my.free) {
			result = `"slots","slots":` + list(my.free[:wanted])
			my.free = my.free[count:]
		}
	default:
		result = fmt.Sprintf(`"unsupported","what":"%s"`, name)
	}
	effects, held, total := "", 0, my.size*len(my.pages)
	if len(freed) > 0 {
		effects = `{"call":"free","slots":` + list(freed) + `}`
	}
	for _, it := range my.pages {
		if it.holds > 0 {
			held += my.size
		}
	}
	my.free = append(my.free, freed...)
	sizes := fmt.Sprintf(`"total_size":%d,"protected_size":%d,"evictable_size":%d,"available_size":%d`,
		total, held, total-held, len(my.free))
	return `{"result":{"is":` + result + `},"effects":[` + effects + `],"sizes":{` + sizes + `}}`
}

func (my *pageCache) hold(node string, by int) {
	for prefix, it := range my.pages {
		if strings.HasPrefix(node, prefix) {
			it.holds += by
		}
	}
}

// oldest returns the page that goes next: the least recent one that none goes on from and nobody holds.
func (my *pageCache) oldest() (oldest string) {
	for prefix, it := range my.pages {
		isLeaf := it.holds <= 0
		for other := range my.pages {
			isLeaf = isLeaf && (other == prefix || !strings.HasPrefix(other, prefix))
		}
		if isLeaf && (oldest == "" || it.used < my.pages[oldest].used) {
			oldest = prefix
		}
	}
	return oldest
}

// walk matches a key, or inserts slots of it, page by page; what is found is used.
func (my *pageCache) walk(step int, op string, isInsert bool) string {
	key, given, found := get(op, "key"), numbersOf(item{value: get(op, "slots")}), []int{}
	node, length, tokens := get(key, "extra_key")+"|", 0, itemsOf(get(key, "tokens"))
	for ; length+my.size <= len(tokens); length += my.size {
		prefix := node
		for _, it := range tokens[length : length+my.size] {
			prefix += it.value + ","
		}
		if known := my.pages[prefix]; known != nil {
			known.used = step
			found = append(found, known.slots...)
		} else if isInsert && length+my.size <= len(given) {
			my.pages[prefix] = &page{given[length : length+my.size], step, 0}
		} else {
			break
		}
		node = prefix
	}
	my.nodes[step] = node
	known, adopted := len(found), ""
	if known < length {
		adopted = fmt.Sprintf("[%d,%d]", known, length)
	}
	if isInsert {
		return fmt.Sprintf(`"inserted","prefix_len":%d,"adopted":[%s],"node_len":%d`, known, adopted, length)
	}
	return fmt.Sprintf(`"matched","prefix_len":%d,"slots":%s,"node_len":%d`, known, list(found), length)
}

func list(numbers []int) string { return strings.ReplaceAll(fmt.Sprint(numbers), " ", ",") }
