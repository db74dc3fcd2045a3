// Plays cache vectors on a cache; this file, one with a cache, and the standard library are all it needs.
//
//	go run run_vectors.go example_cache.go ../../v1/prefix.jsonl [--known known.json]
//
// docs/vectors.md has the format and the rules. Copyright: the authors of pymllm. Licence: Apache-2.0.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// -- the interface: what your file has instead of example_cache.go ----------------------------------------
//	const kind = "prefix"                // vectors of other kinds are skipped
//	const claims = `"pool", "extra_key"` // a vector that needs another one is skipped
//	func build(config string) cache      // a cache made so; where it is nil, the vector is skipped

// cache carries out the operation of a step; an answer is JSON with "result", "effects" and "sizes", too.
type cache func(step int, op string) (answer string)

// -- JSON: a value is its text ----------------------------------------------------------------------------

const limit, space = 1 << 20, " \t\r\n" // the most of counts, sizes and slots; what JSON passes over

// plain has the words of JSON in ASCII without escapes, with integers of at most 19 digits.
var plain = regexp.MustCompile(`^(?:[\[\]{},: \t\r\n]|"[ !#-\[\]-\x7f]*"|null|true|false` +
	`|\b0\b|-?\b[1-9][0-9]{0,18}\b)*$`)

type item struct{ name, value string }

// itemsOf returns the items of a list, or of an object with their names; none where the text is neither.
func itemsOf(text string) (items []item) {
	source := json.NewDecoder(strings.NewReader(text))
	for _, err := source.Token(); err == nil && source.More(); {
		name, value := json.Token(""), json.RawMessage{}
		if text[0] == '{' {
			name, _ = source.Token()
		}
		if err = source.Decode(&value); err == nil {
			items = append(items, item{fmt.Sprint(name), string(value)})
		}
	}
	return items
}

// get returns a field of an object; where there is none, it and its text are empty, and its number is 0.
func get(text, name string) string {
	fields := map[string]json.RawMessage{}
	_ = json.Unmarshal([]byte(text), &fields)
	return string(fields[name])
}

func textOf(text, name string) (value string) {
	_ = json.Unmarshal([]byte(get(text, name)), &value)
	return value
}

func numberOf(text, name string) int {
	number, _ := strconv.Atoi(get(text, name))
	return map[bool]int{true: number}[0 <= number && number <= limit]
}

func numbersOf(lists ...item) (numbers []int) {
	for _, list := range lists {
		for _, it := range itemsOf(list.value) {
			if number, err := strconv.Atoi(it.value); err == nil && number >= 0 {
				numbers = append(numbers, number)
			}
		}
	}
	return numbers
}

// -- comparison: the rules of docs/vectors.md -------------------------------------------------------------

// find returns the first place below an end where something is so, or -1.
func find(end int, is func(at int) bool) int {
	for at := 0; at < end; at++ {
		if is(at) {
			return at
		}
	}
	return -1
}

// isLike tells whether an answer is as expected; ended is set where it is another one that is right.
func isLike(expected, seen string, ended *bool) bool {
	all, left, isList := itemsOf(expected), itemsOf(seen), strings.HasPrefix(seen, "[")
	form, value := (expected + " ")[:1], ""
	if at := find(len(all), func(at int) bool { return strings.HasPrefix(all[at].name, "$") }); at >= 0 {
		form, value = all[at].name, all[at].value
	}
	ways := itemsOf(value)
	isWay := func(at int) bool { return isLike(ways[at].value, seen, ended) }
	switch form {
	case "{":
		fields := map[string]json.RawMessage{}
		_ = json.Unmarshal([]byte(`{"is":null,"effects":[],"result":{}}`), &fields)
		_ = json.Unmarshal([]byte(seen), &fields)
		return strings.HasPrefix(seen, "{") && find(len(all), func(at int) bool {
			other := string(fields[all[at].name])
			return other != "" && !isLike(all[at].value, other, ended)
		}) < 0
	case "[":
		isWrong := func(at int) bool { return !isLike(all[at].value, left[at].value, ended) }
		return isList && len(all) == len(left) && find(len(all), isWrong) < 0
	case "$set":
		return isList && find(len(ways), func(way int) bool {
			at := find(len(left), func(at int) bool { return isLike(ways[way].value, left[at].value, ended) })
			if at >= 0 {
				left = append(left[:at], left[at+1:]...)
			}
			return at < 0
		}) < 0 && len(left) == 0
	case "$of", "$halves":
		return value == seen || value == "["+seen+"]"
	case "$new":
		return areNew(expected, numbersOf(item{value: seen}))
	case "$any":
		return find(len(ways), isWay) >= 0
	case "$calls":
		return areCalls(expected, seen, ended)
	case "$may":
		isFirst := isLike(value, seen, ended)
		ways = itemsOf(get(expected, "or"))
		*ended = *ended || !isFirst && (get(expected, "or") == "" || find(len(ways), isWay) >= 0)
		return isFirst || *ended
	}
	return form == "$free" || expected == seen
}

// areNew tells whether these are different numbers that fill pages from their first on, none of a taken page.
func areNew(expected string, seen []int) bool {
	page, isTaken := numberOf(expected, "page"), map[int]bool{}
	if len(seen) != numberOf(expected, "$new") || page == 0 {
		return false
	}
	for _, number := range numbersOf(itemsOf(get(expected, "but"))...) {
		isTaken[number/page] = true
	}
	return find(len(seen), func(at int) bool {
		isNext := at%page != 0 && seen[at] == seen[at-1]+1
		isFirst := at%page == 0 && seen[at]%page == 0 && !isTaken[seen[at]/page]
		isTaken[seen[at]/page] = true
		isIn := numberOf(expected, "least") <= seen[at] && seen[at] <= numberOf(expected, "most")
		return !isIn || !isNext && !isFirst
	}) < 0
}

// areCalls tells whether calls are as many, or of the slots, as expected, and callbacks saw what they must.
func areCalls(expected, seen string, ended *bool) bool {
	names, calls, inside := itemsOf(get(expected, "$calls")), itemsOf(seen), get(expected, "inside")
	isWrong := func(at int) bool {
		lists, wanted := []item{}, numbersOf(itemsOf(names[at].value)...)
		for _, call := range calls {
			if textOf(call.value, "call") == names[at].name {
				lists = append(lists, item{value: get(call.value, "slots")})
			}
		}
		slots, isForm := numbersOf(lists...), names[at].value[0] == '{'
		sort.Ints(slots)
		sort.Ints(wanted)
		isSame := fmt.Sprint(slots) == fmt.Sprint(wanted)
		return !(isForm && isSame) && names[at].value != fmt.Sprint(len(lists))
	}
	isStrange := func(at int) bool {
		name, sizes := textOf(calls[at].value, "call"), get(calls[at].value, "sizes")
		isBad := name == "callback" && inside != "" && !isLike(inside, sizes, ended)
		return isBad || name != "callback" && get(get(expected, "$calls"), name) == ""
	}
	return find(len(names), isWrong) < 0 && find(len(calls), isStrange) < 0
}

// -- playing ----------------------------------------------------------------------------------------------

// resolve puts numbers in the place of spans, of the answers of earlier steps: as many parts as there are.
func resolve(value string, given []string, field string) (parts []string) {
	if get(value, "step") != "" && get(value, "stop") != "" {
		step, stop, all := numberOf(value, "step"), numberOf(value, "stop"), []int{}
		for at := 0; step == 0 && at < stop; at++ { // of step 0, they themselves
			all = append(all, at)
		}
		if 0 < step && step <= len(given) {
			all = numbersOf(item{value: get(given[step-1], field)})
		}
		for at := numberOf(value, "start"); at < stop && at < len(all); at++ {
			parts = append(parts, fmt.Sprint(all[at]))
		}
		return parts
	}
	for _, it := range itemsOf(value) {
		of := map[bool]string{true: "swa_slots", false: field}[it.name == "$halves"]
		inner := resolve(it.value, given, of)
		if value[0] == '{' { // where a span is one number
			inner = []string{`"` + it.name + `":` + append(inner, "null")[0]}
		}
		parts = append(parts, inner...)
	}
	if value[0] != '{' && value[0] != '[' {
		return []string{value}
	}
	return []string{value[:1] + strings.Join(parts, ",") + string(value[0]+2)}
}

// play tells what becomes of a vector: passed, failed, other way or skipped; and why it failed, or was left.
func play(vector, of string) (verdict, why string) {
	missing := []string{}
	for _, it := range itemsOf(get(vector, "needs")) {
		if !strings.Contains(claims, it.value) {
			missing = append(missing, textOf(`{"it":`+it.value+"}", "it"))
		}
	}
	if of != kind {
		return "skipped", "is not of kind " + of
	} else if len(missing) > 0 {
		return "skipped", "does not claim " + strings.Join(missing, ", ")
	}
	doing := "build: " + get(vector, "config")
	defer func() { // what the cache panics with is told with the vector
		if raised := recover(); raised != nil {
			verdict, why = "failed", doing+"\n    raised   "+fmt.Sprint(raised)
		}
	}()
	mine, given, ended := build(get(vector, "config")), []string{}, false
	if mine == nil {
		return "skipped", "cannot be built so"
	}
	for at, it := range itemsOf(get(vector, "steps")) {
		op := strings.Join(resolve(get(it.value, "op"), given, "slots"), ",")
		expected := strings.Join(resolve(get(it.value, "expect"), given, "slots"), ",")
		doing = fmt.Sprintf("step %d: %s", at+1, op)
		seen := mine(at+1, op)
		if textOf(get(seen, "result"), "is") == "unsupported" {
			return "skipped", textOf(op, "op") + " is unsupported"
		}
		if !isLike(expected, seen, &ended) || ended {
			why = fmt.Sprintf("%s\n    expected %s\n    seen     %s", doing, expected, seen)
			return map[bool]string{true: "other way", false: "failed"}[ended], why
		}
		given = append(given, get(seen, "result"))
	}
	return "passed", ""
}

// -- the command ------------------------------------------------------------------------------------------

func demand(isRight bool, why string) {
	if !isRight {
		fmt.Fprintln(os.Stderr, why)
		os.Exit(2)
	}
}

func read(path string) string {
	text, err := os.ReadFile(path)
	demand(err == nil, path+": must be a file that can be read")
	return string(text)
}

func check(place, text string, fields ...string) string {
	isRight := strings.HasPrefix(text, "{") && plain.MatchString(text) && json.Valid([]byte(text))
	isMissing := func(at int) bool { return get(text, fields[at]) == "" }
	isRight = isRight && find(len(fields), isMissing) < 0
	names := strings.Join(fields, ", ") + map[bool]string{true: "reasons by ids"}[len(fields) == 0]
	demand(isRight, place+": must be plain JSON, an object with "+names)
	return text
}

func main() {
	known, files, lists, told, status := "{}", []string{}, []string{}, "", 0
	counts, skips, words := map[string]int{}, map[string]int{}, append(os.Args, "")
	for at := 1; at < len(os.Args); at++ {
		into := &files
		if words[at] == "--known" {
			at, into = at+1, &lists
		}
		*into = append(*into, words[at])
	}
	isOption := func(at int) bool { return strings.HasPrefix(files[at], "-") }
	isOdd := len(lists) > 1 || len(lists) == 1 && lists[0] == "" || find(len(files), isOption) >= 0
	demand(len(files) > 0 && !isOdd, "usage: run_vectors FILE... [--known FILE], with one list at most")
	for _, path := range lists {
		known = check("--known "+path, strings.Trim(read(path), space))
	}
	for _, path := range files {
		kind := ""
		for number, line := range strings.Split(read(path), "\n") {
			place, line := fmt.Sprintf("%s: line %d", path, number+1), strings.Trim(line, space)
			if line != "" && kind == "" {
				kind = textOf(check(place, line, "format", "schema", "kind"), "kind")
				schema := get(line, "schema")
				if !strings.ContainsAny(schema[:1], "-0123456789") {
					schema = "no number"
				}
				why := ", and must be 1: take the runner that came with these vectors"
				demand(schema == "1", place+": schema is "+schema+why)
			} else if line != "" {
				check(place, line, "id", "law", "says", "needs", "config", "steps")
				for _, it := range itemsOf(get(line, "steps")) {
					check(place, it.value, "op", "expect")
				}
				verdict, why := play(line, kind)
				id, reason := textOf(line, "id"), textOf(known, textOf(line, "id"))
				counts[verdict]++
				title := fmt.Sprintf("%s  %s: %s\n    ", id, textOf(line, "law"), textOf(line, "says"))
				if verdict == "failed" && reason == "" {
					told, status = told+title+why+"\n", 1
				} else if verdict == "failed" {
					told += title + "known: " + reason + "\n"
				} else if verdict == "skipped" {
					skips[why]++
				} else if reason != "" {
					told += id + "  passes, and is listed as a known deviation\n"
				}
			}
		}
		demand(kind != "", path+": must begin with a header, which names the kind of its vectors")
	}
	ordered, _ := json.Marshal(skips) // by their words
	for _, it := range itemsOf(string(ordered)) {
		told += "    " + it.value + " skipped: " + it.name + "\n"
	}
	played := counts["passed"] + counts["failed"] + counts["other way"]
	if total, all := played+counts["skipped"], 1000*played; played > 0 {
		told += fmt.Sprintf("played %d of %d vectors (%d.%d %%)", played, total, all/total/10, all/total%10)
	} else {
		told, status = told+fmt.Sprintf("nothing was played of %d vectors", total), 3
	}
	ordered, _ = json.Marshal(counts)
	for _, it := range itemsOf(string(ordered)) {
		told += ", " + it.name + " " + it.value
	}
	fmt.Println(told)
	os.Exit(status)
}
