// Plays cache vectors on a cache; one file, and the standard library is all that it needs.
//
//	go run run_vectors.go ../../v1/prefix.jsonl [--known known.json]
//
// Copy it, and put your cache in the place of pageCache. docs/vectors.md has the format and the rules.
// Copyright: the authors of pymllm. Licence: Apache-2.0.
package main

import (
	"fmt"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// -- JSON: a value is its text, in ASCII without escapes, and a number an integer of 64 bits -------------------

const limit, levels = 1 << 20, 99 // the most of counts, sizes and slots, and of lists in lists

var atom = regexp.MustCompile(`^("[ !#-\[\]-\x7f]*"|null|true|false|0|-?[1-9][0-9]{0,18})`)

type item struct{ name, value string }

func skip(text string) string { return strings.TrimLeft(text, " \t\r\n") }

// scan returns the items of the value that a text begins with, an object's with their names, and the rest; or "?".
func scan(text string, levels int) (items []item, rest string) {
	if !strings.HasPrefix(text, "[") && !strings.HasPrefix(text, "{") {
		value := atom.FindString(text)
		return nil, map[bool]string{true: "?", false: text[len(value):]}[value == ""]
	}
	for rest = skip(text[1:]); !strings.HasPrefix(rest, string(text[0]+2)); rest = skip(rest) {
		name := ""
		if items != nil && strings.HasPrefix(rest, ",") {
			rest = skip(rest[1:])
		} else if items != nil || levels == 0 {
			return nil, "?"
		}
		if text[0] == '{' {
			name = atom.FindString(rest)
			rest = skip(rest[len(name):])
			if !strings.HasPrefix(name, `"`) || !strings.HasPrefix(rest, ":") {
				return nil, "?"
			}
			rest = skip(rest[1:])
		}
		start := rest
		if _, rest = scan(start, levels-1); rest == "?" {
			return nil, "?"
		}
		items = append(items, item{strings.Trim(name, `"`), start[:len(start)-len(rest)]})
	}
	return items, rest[1:]
}

func itemsOf(text string) []item {
	items, _ := scan(text, levels)
	return items
}

// get returns a field of an object; where there is none, it and its text are empty, and its number is 0.
func get(text, name string) string {
	for _, it := range itemsOf(text) {
		if it.name == name {
			return it.value
		}
	}
	return ""
}

func textOf(text, name string) string {
	if value := get(text, name); strings.HasPrefix(value, `"`) {
		return strings.Trim(value, `"`)
	}
	return ""
}

func numberOf(text, name string) int {
	if number, err := strconv.Atoi(get(text, name)); err == nil && 0 <= number && number <= limit {
		return number
	}
	return 0
}

func numbersOf(text string) (numbers []int) {
	for _, it := range itemsOf(text) {
		if number, err := strconv.Atoi(it.value); err == nil && number >= 0 {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

func list(numbers []int) string { return strings.ReplaceAll(fmt.Sprint(numbers), " ", ",") }

// -- comparison: the rules of docs/vectors.md ------------------------------------------------------------------

func find(items []item, is func(item) bool) int {
	for at, it := range items {
		if is(it) {
			return at
		}
	}
	return -1
}

// isLike tells whether an answer is as expected; ended is set where it is another one that is right.
func isLike(expected, seen string, ended *bool) bool {
	all, left, isList := itemsOf(expected), itemsOf(seen), strings.HasPrefix(seen, "[")
	form, value := (expected + " ")[:1], ""
	if at := find(all, func(it item) bool { return strings.HasPrefix(it.name, "$") }); at >= 0 {
		form, value = all[at].name, all[at].value
	}
	isThis := func(it item) bool { return isLike(it.value, seen, ended) }
	switch form {
	case "{":
		return strings.HasPrefix(seen, "{") && find(all, func(it item) bool {
			other := get(seen, it.name)
			if other == "" {
				other = map[string]string{"is": "null", "effects": "[]"}[it.name]
			}
			return other != "" && !isLike(it.value, other, ended)
		}) < 0
	case "[":
		isRight := isList && len(all) == len(left)
		for at := 0; at < len(all) && isRight; at++ {
			isRight = isLike(all[at].value, left[at].value, ended)
		}
		return isRight
	case "$of", "$halves":
		return value == seen || value == "["+seen+"]"
	case "$new":
		return areNew(expected, numbersOf(seen))
	case "$set":
		for _, it := range itemsOf(value) {
			at := find(left, func(other item) bool { return isLike(it.value, other.value, ended) })
			if at < 0 {
				return false
			}
			left = append(left[:at], left[at+1:]...)
		}
		return isList && len(left) == 0
	case "$any":
		return find(itemsOf(value), isThis) >= 0
	case "$free":
		return true
	case "$calls":
		return areCalls(expected, seen, ended)
	case "$may":
		if isThis(item{"", value}) {
			return true
		}
		*ended = *ended || get(expected, "or") == "" || find(itemsOf(get(expected, "or")), isThis) >= 0
		return *ended
	}
	return expected == seen
}

// areNew tells whether these are different numbers that fill pages from their beginning, none of a taken page.
func areNew(expected string, seen []int) bool {
	page, isTaken := numberOf(expected, "page"), map[int]bool{}
	if len(seen) != numberOf(expected, "$new") || page == 0 {
		return false
	}
	for _, form := range itemsOf(get(expected, "but")) {
		for _, number := range numbersOf(form.value) {
			isTaken[number/page] = true
		}
	}
	for at, it := range seen {
		isNext := at%page != 0 && it == seen[at-1]+1
		isFirst := at%page == 0 && it%page == 0 && !isTaken[it/page]
		if !isNext && !isFirst || it < numberOf(expected, "least") || it > numberOf(expected, "most") {
			return false
		}
		isTaken[it/page] = true
	}
	return true
}

// areCalls tells whether calls are as many as expected, or of the slots that are, and what callbacks saw is right.
func areCalls(expected, seen string, ended *bool) bool {
	calls, inside := get(expected, "$calls"), get(expected, "inside")
	for _, it := range itemsOf(calls) {
		slots, wanted, count := []int{}, []int{}, 0
		for _, call := range itemsOf(seen) {
			if textOf(call.value, "call") == it.name {
				slots = append(slots, numbersOf(get(call.value, "slots"))...)
				count++
			}
		}
		for _, form := range itemsOf(it.value) {
			wanted = append(wanted, numbersOf(form.value)...)
		}
		sort.Ints(slots)
		sort.Ints(wanted)
		isCount := !strings.HasPrefix(it.value, "{")
		if isCount && it.value != fmt.Sprint(count) || !isCount && list(slots) != list(wanted) {
			return false
		}
	}
	return find(itemsOf(seen), func(it item) bool {
		if name := textOf(it.value, "call"); name != "callback" {
			return get(calls, name) == ""
		}
		return inside != "" && !isLike(inside, get(it.value, "sizes"), ended)
	}) < 0
}

// -- playing ---------------------------------------------------------------------------------------------------

// resolve puts numbers in the place of spans: of the answer of an earlier step, or of step 0 they themselves.
func resolve(value string, given []string, kind string) string {
	if get(value, "step") != "" && get(value, "stop") != "" {
		step, start, stop := numberOf(value, "step"), numberOf(value, "start"), numberOf(value, "stop")
		var all []int
		for number := 0; step == 0 && number < stop; number++ {
			all = append(all, number)
		}
		if 0 < step && step <= len(given) {
			all = numbersOf(get(given[step-1], kind))
		}
		if stop > len(all) {
			stop = len(all)
		}
		if start > stop {
			start = stop
		}
		return strings.Trim(list(all[start:stop]), "[]")
	}
	parts := []string{}
	for _, it := range itemsOf(value) {
		of := map[bool]string{true: "swa_slots", false: kind}[it.name == "$halves"]
		if part := resolve(it.value, given, of); value[0] == '{' {
			if part == "" {
				part = "null"
			} else if !strings.ContainsAny(part[:1], `[{"`) {
				part = strings.Split(part, ",")[0]
			}
			parts = append(parts, `"`+it.name+`":`+part)
		} else if part != "" {
			parts = append(parts, part)
		}
	}
	if value[0] == '{' || value[0] == '[' {
		return value[:1] + strings.Join(parts, ",") + string(value[0]+2)
	}
	return value
}

// play tells what becomes of a vector: passed, failed, other way or skipped; and why it failed.
func play(vector, kind string) (verdict, why string) {
	isStrange := func(it item) bool { return !strings.Contains(claims, it.value) }
	if kind != "prefix" || find(itemsOf(get(vector, "needs")), isStrange) >= 0 {
		return "skipped", ""
	}
	cache := build(get(vector, "config"))
	if cache == nil {
		return "skipped", ""
	}
	given, ended := []string{}, false
	for at, it := range itemsOf(get(vector, "steps")) {
		op := resolve(get(it.value, "op"), given, "slots")
		expected := resolve(get(it.value, "expect"), given, "slots")
		seen := cache.apply(at+1, op)
		if textOf(get(seen, "result"), "is") == "unsupported" {
			return "skipped", ""
		}
		isRight := isLike(expected, seen, &ended)
		if ended {
			return "other way", ""
		}
		if !isRight {
			return "failed", fmt.Sprintf("step %d: %s\n    expected %s\n    seen     %s", at+1, op, expected, seen)
		}
		given = append(given, get(seen, "result"))
	}
	return "passed", ""
}

// -- an example: yours instead, with kind, claims, build and apply ---------------------------------------------

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
func build(config string) *pageCache {
	isStrange := func(it item) bool {
		return !strings.Contains("page_size slots swa_slots window pool check_ownership", it.name)
	}
	size, slots := numberOf(config, "page_size"), numberOf(config, "slots")
	isPool := get(config, "window") == "null" && textOf(config, "pool") == "token"
	if find(itemsOf(config), isStrange) >= 0 || !isPool || size == 0 {
		return nil
	}
	cache := &pageCache{size, nil, map[string]*page{}, map[int]string{}}
	for slot := size; slot < size+slots; slot++ { // page 0 is for padding
		cache.free = append(cache.free, slot)
	}
	return cache
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

// oldest returns the page that goes next: the least recent one of those that none goes on from and nobody holds.
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
	key, given, found := get(op, "key"), numbersOf(get(op, "slots")), []int{}
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

// -- the command -----------------------------------------------------------------------------------------------

const usage = "usage: run_vectors FILE... [--known FILE]"

func refuse(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(2)
}

func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		refuse(path + ": must be a file that can be read")
	}
	return string(text)
}

func check(place, text string, fields ...string) {
	_, rest := scan(text, levels)
	isWhole := strings.HasPrefix(text, "{") && skip(rest) == ""
	for _, name := range fields {
		isWhole = isWhole && get(text, name) != ""
	}
	if !isWhole {
		refuse(place + ": must be plain JSON, an object with " + strings.Join(fields, ", "))
	}
}

func main() {
	known, files, words := "{}", []string{}, os.Args[1:]
	for at := 0; at < len(words); at++ {
		if words[at] == "--known" && at+1 < len(words) {
			at++
			known = skip(read(words[at]))
			check("--known", known)
		} else if strings.HasPrefix(words[at], "-") {
			refuse(usage)
		} else {
			files = append(files, words[at])
		}
	}
	if len(files) == 0 {
		refuse(usage)
	}
	counts, told, status := map[string]int{}, "", 0
	for _, path := range files {
		kind := ""
		for number, line := range strings.Split(read(path), "\n") {
			place, line := fmt.Sprintf("%s: line %d", path, number+1), skip(line)
			if line == "" {
				continue
			}
			if kind == "" {
				check(place, line, "format", "schema", "kind")
				kind = textOf(line, "kind")
				continue
			}
			check(place, line, "id", "law", "says", "needs", "config", "steps")
			for _, it := range itemsOf(get(line, "steps")) {
				check(place, it.value, "op", "expect")
			}
			verdict, why := play(line, kind)
			id, reason := textOf(line, "id"), textOf(known, textOf(line, "id"))
			counts[verdict]++
			if verdict == "failed" && reason == "" {
				status = 1
			} else if verdict == "failed" {
				why = "known: " + reason
			}
			if verdict == "failed" {
				told += fmt.Sprintf("%s  %s: %s\n    %s\n", id, textOf(line, "law"), textOf(line, "says"), why)
			} else if verdict != "skipped" && reason != "" {
				told += id + "  passes, and is listed as a known deviation\n"
			}
		}
		if kind == "" {
			refuse(path + ": must begin with a header, which names the kind of its vectors")
		}
	}
	summary := []string{}
	for verdict, count := range counts {
		summary = append(summary, fmt.Sprintf("%s %d", verdict, count))
	}
	sort.Strings(summary)
	fmt.Println(told + strings.Join(summary, ", "))
	os.Exit(status)
}
