// Plays cache vectors on a cache; this file, one with a cache, and the standard library are all it needs.
//
//     g++ -O2 -std=c++17 -o run_vectors run_vectors.cpp
//     ./run_vectors ../../v1/prefix.jsonl [--known known.json]
//
// docs/vectors.md has the format and the rules. Copyright: the authors of pymllm. Licence: Apache-2.0.

#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

using std::min, std::string, std::to_string, std::vector;

// -- JSON: a value is its text, in ASCII without escapes, and a number an integer of at most 19 digits ----

const size_t LIMIT = 1 << 20, NOWHERE = string::npos;  // the most of counts, sizes and slots
const int LEVELS = 99;                                 // of lists in lists

struct Item { string name, value; };

size_t skip(const string& text, size_t at) { return min(text.find_first_not_of(" \t\r\n", at), text.size()); }

// The place behind a string, a number or a word; nowhere where there is none.
size_t behind_atom(const string& text, size_t at) {
    size_t end = text[at] == '"' ? text.find('"', at + 1) : text.find_first_of(" \t\r\n,:]}", at);
    string atom = text.substr(at, min(end, text.size()) - at);
    if (text[at] == '"') {
        auto is_odd = [](unsigned char it) { return it < ' ' || it > 127 || it == '\\'; };
        return end == NOWHERE || std::any_of(atom.begin(), atom.end(), is_odd) ? NOWHERE : end + 1;
    }
    string digits = atom.substr(atom[0] == '-');
    bool are_digits = digits.find_first_not_of("0123456789") == NOWHERE && (digits[0] != '0' || atom == "0");
    bool is_number = are_digits && !digits.empty() && digits.size() < 20;
    return is_number || atom == "null" || atom == "true" || atom == "false" ? at + atom.size() : NOWHERE;
}

// The place behind a value, or nowhere; its items are added, an object's with their names.
size_t scan(const string& text, size_t at, vector<Item>& items, int levels) {
    char open = text[at], close = open + 2;  // so it is in ASCII
    if (open != '[' && open != '{') return behind_atom(text, at);
    for (at = skip(text, at + 1); text[at] != close; at = skip(text, at)) {
        if (levels == 0 || (!items.empty() && text[at++] != ',')) return NOWHERE;
        size_t start = at = skip(text, at);
        string name;
        if (open == '{') {
            at = text[start] == '"' ? behind_atom(text, start) : NOWHERE;
            if (at == NOWHERE || text[skip(text, at)] != ':') return NOWHERE;
            name = text.substr(start + 1, at - start - 2);
            start = skip(text, skip(text, at) + 1);
        }
        vector<Item> inner;
        at = scan(text, start, inner, levels - 1);
        if (at == NOWHERE) return NOWHERE;
        items.push_back({name, text.substr(start, at - start)});
    }
    return at + 1;
}

vector<Item> items_of(const string& text) {
    vector<Item> items;
    if (scan(text, 0, items, LEVELS) == NOWHERE) items.clear();
    return items;
}

// A field of an object; where there is none, it and its text are empty, and its number is 0.
string get(const string& text, const string& name) {
    for (auto& item : items_of(text)) if (item.name == name) return item.value;
    return "";
}

string text_of(const string& text, const string& name) {
    string value = get(text, name);
    return value[0] == '"' ? value.substr(1, value.size() - 2) : "";
}

vector<size_t> numbers_of(const string& text) {
    vector<size_t> numbers;
    for (auto& item : items_of(text)) if (isdigit(item.value[0])) numbers.push_back(std::stoull(item.value));
    return numbers;
}

size_t number_of(const string& text, const string& name) {
    auto numbers = numbers_of("[" + get(text, name) + "]");
    return numbers.size() == 1 && numbers[0] <= LIMIT ? numbers[0] : 0;
}

string join(const vector<size_t>& numbers) {
    string text;
    for (auto number : numbers) text += (text.empty() ? "" : ",") + to_string(number);
    return text;
}

// -- comparison: the rules of docs/vectors.md -------------------------------------------------------------

// Whether these are different numbers that fill pages from their beginning, none of a taken page.
bool are_new(const string& expected, const vector<size_t>& seen) {
    size_t page = number_of(expected, "page"), least = number_of(expected, "least");
    std::set<size_t> taken;
    if (seen.size() != number_of(expected, "$new") || page == 0) return false;
    for (auto& form : items_of(get(expected, "but")))
        for (auto it : numbers_of(form.value)) taken.insert(it / page);
    for (size_t at = 0; at < seen.size(); at++) {
        size_t it = seen[at];
        bool is_first = at % page == 0 && it % page == 0 && taken.insert(it / page).second;
        bool is_next = at % page != 0 && it == seen[at - 1] + 1;
        if (it < least || it > number_of(expected, "most") || !(is_first || is_next)) return false;
    }
    return true;
}

bool is_like(const string& expected, const string& seen, bool& ended);

// Whether calls are as many as expected, or of the slots that are, and what callbacks saw is right.
bool are_calls(const string& expected, const string& seen, bool& ended) {
    string calls = get(expected, "$calls"), inside = get(expected, "inside");
    for (auto& [name, value] : items_of(calls)) {
        size_t count = 0;
        std::multiset<size_t> slots, wanted;
        for (auto& call : items_of(seen)) {
            if (text_of(call.value, "call") != name) continue;
            count++;
            for (auto slot : numbers_of(get(call.value, "slots"))) slots.insert(slot);
        }
        for (auto& form : items_of(value)) for (auto it : numbers_of(form.value)) wanted.insert(it);
        if (value[0] == '{' ? slots != wanted : value != to_string(count)) return false;
    }
    for (auto& [_, call] : items_of(seen)) {
        string name = text_of(call, "call"), sizes = get(call, "sizes");
        if (name != "callback" && get(calls, name).empty()) return false;
        if (name == "callback" && !inside.empty() && !is_like(inside, sizes, ended)) return false;
    }
    return true;
}

// Whether an answer is as expected; `ended` is set where it is another one that is right.
bool is_like(const string& expected, const string& seen, bool& ended) {
    auto all = items_of(expected), left = items_of(seen);
    string form = expected.substr(0, 1), value;
    for (auto& item : all) if (value.empty() && item.name[0] == '$') form = item.name, value = item.value;
    auto is_in = [&](const string& list) {
        for (auto& item : items_of(list)) if (is_like(item.value, seen, ended)) return true;
        return false;
    };
    if (form == "{" && seen[0] != '{') return false;
    if (form == "{") {
        for (auto& [name, value] : all) {
            string other = get(seen, name);
            if (other.empty()) other = name == "is" ? "null" : name == "effects" ? "[]" : "";
            if (other.empty() && name == "result") other = "{}";
            if (!other.empty() && !is_like(value, other, ended)) return false;
        }
        return true;
    }
    if (form == "[" || form == "$set") {
        auto wanted = form == "[" ? all : items_of(value);
        if (seen[0] != '[' || wanted.size() != left.size()) return false;
        for (auto& item : wanted) {
            auto is_it = [&](auto& other) { return is_like(item.value, other.value, ended); };
            auto end = form == "[" ? left.begin() + 1 : left.end();
            auto place = std::find_if(left.begin(), end, is_it);
            if (place == end) return false;
            left.erase(place);
        }
        return true;
    }
    if (form == "$of" || form == "$halves") return value == seen || value == "[" + seen + "]";
    if (form == "$new") return are_new(expected, numbers_of(seen));
    if (form == "$any") return is_in(value);
    if (form == "$calls") return are_calls(expected, seen, ended);
    if (form == "$may" && !is_like(value, seen, ended)) {
        ended = ended || get(expected, "or").empty() || is_in(get(expected, "or"));
        return ended;
    }
    return form == "$free" || form == "$may" || expected == seen;
}

// -- playing ----------------------------------------------------------------------------------------------

// A value with numbers in the place of spans: of the answer of an earlier step, or of step 0 they themselves.
string resolve(const string& value, const vector<string>& given, const string& kind) {
    if (!get(value, "step").empty() && !get(value, "stop").empty()) {
        size_t step = number_of(value, "step"), stop = number_of(value, "stop");
        vector<size_t> all, some;
        if (step > 0 && step <= given.size()) all = numbers_of(get(given[step - 1], kind));
        for (size_t at = 0; step == 0 && at < stop; at++) all.push_back(at);
        stop = min(stop, all.size());
        for (size_t at = number_of(value, "start"); at < stop; at++) some.push_back(all[at]);
        return join(some);
    }
    string inner;
    for (auto& item : items_of(value)) {
        string part = resolve(item.value, given, item.name == "$halves" ? "swa_slots" : kind);
        if (value[0] == '{' && string("[{\"").find(part[0]) == NOWHERE) part = part.substr(0, part.find(','));
        if (value[0] == '{') part = "\"" + item.name + "\":" + (part.empty() ? "null" : part);
        if (!part.empty()) inner += (inner.empty() ? "" : ",") + part;
    }
    return value[0] == '{' ? "{" + inner + "}" : value[0] == '[' ? "[" + inner + "]" : value;
}

// -- the interface: what your file has instead of example_cache.hpp ---------------------------------------
// struct PageCache {
//     inline static const string KIND = "prefix";                  // vectors of other kinds are skipped
//     inline static const std::set<string> CLAIMS = {"\"pool\""};  // what else a vector may need
//     static std::optional<PageCache> build(const string& config);
//     string apply(size_t step, const string& op);  // JSON with "result", "effects" and "sizes"
// };

#include "example_cache.hpp"

// What becomes of a vector: passed, failed, other way or skipped; and why it failed, or was skipped.
string play(const string& vector_, const string& kind, string& why) try {
    string missing, config = get(vector_, "config");
    for (auto& [_, it] : items_of(get(vector_, "needs")))
        if (!PageCache::CLAIMS.count(it)) missing += ", " + (it[0] == '"' ? it.substr(1, it.size() - 2) : "");
    if (kind != PageCache::KIND) return why = "is not of kind " + kind, "skipped";
    if (!missing.empty()) return why = "does not claim " + missing.substr(2), "skipped";
    why = "build: " + config;
    auto cache = PageCache::build(config);
    if (!cache) return why = "cannot be built so", "skipped";
    vector<string> given;
    bool ended = false;
    for (auto& item : items_of(get(vector_, "steps"))) {
        string op = resolve(get(item.value, "op"), given, "slots"), number = to_string(given.size() + 1);
        string expected = resolve(get(item.value, "expect"), given, "slots");
        why = "step " + number + ": " + op;
        string seen = cache->apply(given.size() + 1, op);
        bool is_unsupported = text_of(get(seen, "result"), "is") == "unsupported";
        if (is_unsupported) return why = text_of(op, "op") + " is unsupported", "skipped";
        if (!is_like(expected, seen, ended)) why += "\n    expected " + expected + "\n    seen     " + seen;
        else if (!ended) { given.push_back(get(seen, "result")); continue; }
        return ended ? "other way" : "failed";
    }
    return "passed";
} catch (const std::exception& error) {
    why += string("\n    raised   ") + error.what();
    return "failed";
}

// -- the command ------------------------------------------------------------------------------------------

const string OTHER = "take the runner that came with these vectors";

[[noreturn]] void refuse(const string& why) { std::cerr << why << "\n"; exit(2); }

string read(const string& path) {
    std::ifstream file(path, std::ios::binary);
    file.peek();  // a folder opens, and fails at its first byte
    if (!file.is_open() || file.bad()) refuse(path + ": must be a file that can be read");
    return {std::istreambuf_iterator<char>(file), {}};
}

void check(const string& place, const string& text, const vector<string>& fields) {
    vector<Item> items;
    string names;
    size_t end = scan(text, 0, items, LEVELS);
    bool is_right = text[0] == '{' && end != NOWHERE && skip(text, end) == text.size();
    for (auto& name : fields) {
        names += (names.empty() ? "" : ", ") + name;
        is_right = is_right && !get(text, name).empty();
    }
    if (names.empty()) names = "reasons by ids";
    if (!is_right) refuse(place + ": must be plain JSON, an object with " + names);
}

int main(int count, char** words) {
    string known = "{}", told;
    vector<string> files, lists;
    std::map<string, int> counts, skips;
    int status = 0;
    for (int at = 1; at < count; at++) {
        bool is_list = string(words[at]) == "--known";
        if (is_list) lists.push_back(++at < count ? words[at] : "");
        else files.push_back(words[at]);
    }
    bool is_odd = lists.size() > 1 || (lists.size() == 1 && lists[0].empty()) || files.empty();
    for (auto& path : files) is_odd = is_odd || path[0] == '-';
    if (is_odd) refuse("usage: run_vectors FILE... [--known FILE], with one list at most");
    for (auto& path : lists) {
        known = read(path);
        check("--known " + path, known = known.substr(skip(known, 0)), {});
    }
    for (auto& path : files) {
        string text = read(path), kind;
        size_t number = 1, end = 0;
        for (size_t at = 0; at < text.size(); at = end + 1, number++) {
            end = min(text.find('\n', at), text.size());
            string line = text.substr(at, end - at), why, place = path + ": line " + to_string(number);
            line = line.substr(skip(line, 0));
            if (line.empty()) continue;
            if (kind.empty()) {
                check(place, line, {"format", "schema", "kind"});
                string schema = get(line, "schema");
                if (!isdigit(schema[0]) && schema[0] != '-') schema = "no number";
                if (schema != "1") refuse(place + ": schema is " + schema + ", and must be 1: " + OTHER);
                kind = text_of(line, "kind");
                continue;
            }
            check(place, line, {"id", "law", "says", "needs", "config", "steps"});
            for (auto& item : items_of(get(line, "steps"))) check(place, item.value, {"op", "expect"});
            string verdict = play(line, kind, why), id = text_of(line, "id"), reason = text_of(known, id);
            counts[verdict]++;
            if (verdict == "failed") {
                if (reason.empty()) status = 1;
                told += id + "  " + text_of(line, "law") + ": " + text_of(line, "says") + "\n    ";
                told += (reason.empty() ? why : "known: " + reason) + "\n";
            } else if (verdict == "skipped") {
                skips[why]++;
            } else if (!reason.empty()) {
                told += id + "  passes, and is listed as a known deviation\n";
            }
        }
        if (kind.empty()) refuse(path + ": must begin with a header, which names the kind of its vectors");
    }
    for (auto& [why, count] : skips) told += "    " + to_string(count) + " skipped: " + why + "\n";
    int total = 0, played = 0;
    for (auto& [verdict, count] : counts) total += count, played += verdict == "skipped" ? 0 : count;
    int share = total ? 1000 * played / total : 0;
    string head = "played " + to_string(played) + " of " + to_string(total) + " vectors (";
    head += to_string(share / 10) + "." + to_string(share % 10) + " %)";
    if (played == 0) head = "nothing was played of " + to_string(total) + " vectors", status = 3;
    std::cout << told << head;
    for (auto& [verdict, count] : counts) std::cout << ", " << verdict << " " << count;
    std::cout << "\n";
    return status;
}
