// Plays cache vectors on a cache; one file, and the standard library is all that it needs.
//
//     g++ -O2 -std=c++17 -o run_vectors run_vectors.cpp && ./run_vectors ../../v1/prefix.jsonl [--known known.json]
//
// Copy it, and put your cache in the place of `PageCache`. docs/vectors.md has the format and the rules.
// Copyright: the authors of pymllm. Licence: Apache-2.0.

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

using std::string, std::to_string, std::vector;

// -- JSON: a value is its text, in ASCII without escapes, and a number an integer of at most 19 digits ----------

const size_t LIMIT = 1 << 20, NOWHERE = string::npos;  // the most of counts, sizes and slots
const int LEVELS = 99;                                 // of lists in lists

struct Item { string name, value; };

size_t skip(const string& text, size_t at) { return std::min(text.find_first_not_of(" \t\r\n", at), text.size()); }

// The place behind a string, a number or a word; nowhere where there is none.
size_t behind_atom(const string& text, size_t at) {
    size_t end = text[at] == '"' ? text.find('"', at + 1) : text.find_first_of(" \t\r\n,:]}", at);
    string atom = text.substr(at, std::min(end, text.size()) - at);
    if (text[at] == '"') {
        auto is_odd = [](unsigned char it) { return it < ' ' || it > 127 || it == '\\'; };
        return end == NOWHERE || std::any_of(atom.begin(), atom.end(), is_odd) ? NOWHERE : end + 1;
    }
    string digits = atom.substr(atom[0] == '-');
    bool is_number = !digits.empty() && digits.size() < 20 && digits.find_first_not_of("0123456789") == NOWHERE;
    is_number = is_number && (digits[0] != '0' || atom == "0");
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

// -- comparison: the rules of docs/vectors.md ------------------------------------------------------------------

// Whether these are different numbers that fill pages from their beginning, none of a taken page.
bool are_new(const string& expected, const vector<size_t>& seen) {
    size_t page = number_of(expected, "page"), least = number_of(expected, "least"), most = number_of(expected, "most");
    std::set<size_t> taken;
    if (seen.size() != number_of(expected, "$new") || page == 0) return false;
    for (auto& form : items_of(get(expected, "but"))) for (auto it : numbers_of(form.value)) taken.insert(it / page);
    for (size_t at = 0; at < seen.size(); at++) {
        size_t it = seen[at];
        bool is_first = at % page == 0 && it % page == 0 && taken.insert(it / page).second;
        if (it < least || it > most || !(is_first || (at % page != 0 && it == seen[at - 1] + 1))) return false;
    }
    return true;
}

bool is_like(const string& expected, const string& seen, bool& ended);

// Whether calls are as many as expected, or of the slots that are, and callbacks saw the sizes that they must.
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
        string name = text_of(call, "call");
        if (name != "callback" && get(calls, name).empty()) return false;
        if (name == "callback" && !inside.empty() && !is_like(inside, get(call, "sizes"), ended)) return false;
    }
    return true;
}

// Whether an answer is as expected; `ended` is set where it is another one that is right, and the vector ends.
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
            if (!other.empty() && !is_like(value, other, ended)) return false;
        }
        return true;
    }
    if (form == "[" || form == "$set") {
        auto wanted = form == "[" ? all : items_of(value);
        if (seen[0] != '[' || wanted.size() != left.size()) return false;
        for (auto& item : wanted) {
            auto is_it = [&](auto& other) { return is_like(item.value, other.value, ended); };
            auto end = form == "[" ? left.begin() + 1 : left.end(), place = std::find_if(left.begin(), end, is_it);
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

// -- playing ---------------------------------------------------------------------------------------------------

// A value with numbers in the place of spans: of the answer of an earlier step, or of step 0 they themselves.
string resolve(const string& value, const vector<string>& given, const string& kind) {
    if (!get(value, "step").empty() && !get(value, "stop").empty()) {
        size_t step = number_of(value, "step"), start = number_of(value, "start"), stop = number_of(value, "stop");
        vector<size_t> all, some;
        if (step > 0 && step <= given.size()) all = numbers_of(get(given[step - 1], kind));
        for (size_t at = start; at < stop && (step == 0 || at < all.size()); at++) some.push_back(step ? all[at] : at);
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

// -- an example: yours instead, with `KIND`, `CLAIMS`, `build` and `apply` -------------------------------------

struct Page {
    vector<size_t> slots;
    size_t used;
    int holds;
};

// Pages of slots by prefix, in a pool of its own; the least recent page that none goes on from goes first.
struct PageCache {
    inline static const string KIND = "prefix";
    inline static const std::set<string> CLAIMS = {"\"pool\"", "\"extra_key\"", "\"exact_lru\""};
    size_t size;
    vector<size_t> free;
    std::map<string, Page> pages;    // by a namespace and the tokens up to their ends
    std::map<size_t, string> nodes;  // by step: the prefix that it returned

    // A cache; none where it cannot be built so.
    static std::optional<PageCache> build(const string& config) {
        const std::set<string> known = {"page_size", "slots", "swa_slots", "window", "pool", "check_ownership"};
        for (auto& item : items_of(config)) if (!known.count(item.name)) return std::nullopt;
        PageCache cache{number_of(config, "page_size"), {}, {}, {}};
        if (get(config, "window") != "null" || text_of(config, "pool") != "token" || !cache.size) return std::nullopt;
        for (size_t slot = 0; slot < number_of(config, "slots"); slot++) cache.free.push_back(cache.size + slot);
        return cache;  // page 0 is for padding
    }

    // Carry an operation out; slots in it are numbers, nodes and holds the steps that returned them.
    string apply(size_t step, const string& op) {
        string name = text_of(op, "op"), result = "\"done\"";
        size_t wanted = number_of(op, "tokens"), count = (wanted + size - 1) / size * size, held = 0;
        vector<size_t> freed;
        if (name == "match" || name == "insert") {
            result = walk(step, op, name == "insert");
        } else if (name == "evict") {
            for (auto it = oldest(); freed.size() < wanted && it != pages.end(); it = oldest()) {
                freed.insert(freed.end(), it->second.slots.begin(), it->second.slots.end());
                pages.erase(it);
            }
            result = "\"evicted\",\"full\":" + to_string(freed.size());
        } else if (name == "lock" || name == "unlock") {
            string node = nodes[number_of(op, name == "lock" ? "of" : "lock")];
            for (auto& [prefix, page] : pages)
                if (node.compare(0, prefix.size(), prefix) == 0) page.holds += name == "lock" ? 1 : -1;
            if (name == "lock") nodes[step] = node, result = "\"locked\"";
        } else if (name == "reset") {
            for (auto& it : pages) freed.insert(freed.end(), it.second.slots.begin(), it.second.slots.end());
            pages.clear();
        } else if (name == "alloc" && count > free.size()) {
            result = "\"no_room\"";
        } else if (name == "alloc") {
            result = "\"slots\",\"slots\":[" + join({free.begin(), free.begin() + wanted}) + "]";
            free.erase(free.begin(), free.begin() + count);
        } else {
            result = "\"unsupported\",\"what\":\"" + name + "\"";
        }
        free.insert(free.end(), freed.begin(), freed.end());
        for (auto& it : pages) held += it.second.holds > 0 ? size : 0;
        string effects = freed.empty() ? "" : "{\"call\":\"free\",\"slots\":[" + join(freed) + "]}";
        string total = to_string(size * pages.size()), left = to_string(size * pages.size() - held);
        return "{\"result\":{\"is\":" + result + "},\"effects\":[" + effects + "],\"sizes\":{\"total_size\":" + total +
               ",\"protected_size\":" + to_string(held) + ",\"evictable_size\":" + left +
               ",\"available_size\":" + to_string(free.size()) + "}}";
    }

    std::map<string, Page>::iterator oldest() {
        auto found = pages.end();
        for (auto it = pages.begin(); it != pages.end(); it++) {
            auto next = std::next(it);  // in order: who goes on from a page comes next
            bool is_last = next == pages.end() || next->first.compare(0, it->first.size(), it->first) != 0;
            if (!is_last || it->second.holds > 0) continue;
            if (found == pages.end() || it->second.used < found->second.used) found = it;
        }
        return found;
    }

    string walk(size_t step, const string& op, bool is_insert) {
        string key = get(op, "key"), node = get(key, "extra_key") + "|";
        auto tokens = items_of(get(key, "tokens"));
        vector<size_t> given = numbers_of(get(op, "slots")), found;
        size_t length = 0;
        for (; length + size <= tokens.size(); length += size) {
            string prefix = node;
            for (size_t at = 0; at < size; at++) prefix += tokens[length + at].value + ",";
            auto page = pages.find(prefix);
            if (page != pages.end()) {
                page->second.used = step;
                found.insert(found.end(), page->second.slots.begin(), page->second.slots.end());
            } else if (is_insert && length + size <= given.size()) {
                pages[prefix] = {{given.begin() + length, given.begin() + length + size}, step, 0};
            } else {
                break;
            }
            node = prefix;
        }
        nodes[step] = node;
        string known = to_string(found.size()), end = to_string(length);
        string list = is_insert ? ",\"adopted\":[" : ",\"slots\":[" + join(found);
        if (is_insert && found.size() < length) list += "[" + known + "," + end + "]";
        string is = is_insert ? "\"inserted\"" : "\"matched\"";
        return is + ",\"prefix_len\":" + known + list + "],\"node_len\":" + end;
    }
};

// What becomes of a vector: passed, failed, other way or skipped; and why it failed.
string play(const string& vector_, const string& kind, string& why) {
    auto needs = items_of(get(vector_, "needs"));
    auto is_claimed = [](auto& it) { return PageCache::CLAIMS.count(it.value) > 0; };
    bool is_ours = kind == PageCache::KIND && std::all_of(needs.begin(), needs.end(), is_claimed);
    auto cache = PageCache::build(get(vector_, "config"));
    if (!is_ours || !cache) return "skipped";
    vector<string> given;
    bool ended = false;
    for (auto& item : items_of(get(vector_, "steps"))) {
        string op = resolve(get(item.value, "op"), given, "slots"), number = to_string(given.size() + 1);
        string expected = resolve(get(item.value, "expect"), given, "slots"), seen = cache->apply(given.size() + 1, op);
        if (text_of(get(seen, "result"), "is") == "unsupported") return "skipped";
        why = "step " + number + ": " + op + "\n    expected " + expected + "\n    seen     " + seen;
        bool is_right = is_like(expected, seen, ended);
        if (ended || !is_right) return ended ? "other way" : "failed";
        given.push_back(get(seen, "result"));
    }
    return "passed";
}

// -- the command -----------------------------------------------------------------------------------------------

[[noreturn]] void refuse(const string& why) { std::cerr << why << "\n"; exit(2); }

string read(const string& path) {
    std::ifstream file(path, std::ios::binary);
    string text{std::istreambuf_iterator<char>(file), {}};
    if (!file) refuse(path + ": must be a file that can be read");
    return text;
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
    if (!is_right) refuse(place + ": must be plain JSON, an object with " + names);
}

int main(int count, char** words) {
    const string usage = "usage: run_vectors FILE... [--known FILE]";
    string known = "{}", told;
    vector<string> files;
    std::map<string, int> counts;
    int status = 0;
    for (int at = 1; at < count; at++) {
        string word = words[at];
        if (word[0] == '-' && (word != "--known" || at + 1 == count)) refuse(usage);
        if (word == "--known") {
            known = read(words[++at]);
            check("--known", known, {});
        } else files.push_back(word);
    }
    if (files.empty()) refuse(usage);
    for (auto& path : files) {
        string text = read(path), kind;
        size_t number = 1, end = 0;
        for (size_t at = 0; at < text.size(); at = end + 1, number++) {
            end = std::min(text.find('\n', at), text.size());
            string line = text.substr(at, end - at), why, place = path + ": line " + to_string(number);
            line = line.substr(skip(line, 0));
            if (line.empty()) continue;
            if (kind.empty()) {
                check(place, line, {"format", "schema", "kind"});
                kind = text_of(line, "kind");
                continue;
            }
            check(place, line, {"id", "law", "says", "needs", "config", "steps"});
            for (auto& item : items_of(get(line, "steps"))) check(place, item.value, {"op", "expect"});
            string verdict = play(line, kind, why), id = text_of(line, "id"), reason = text_of(known, id);
            counts[verdict]++;
            if (verdict == "failed") {
                if (reason.empty()) status = 1;
                if (!reason.empty()) why = "known: " + reason;
                told += id + "  " + text_of(line, "law") + ": " + text_of(line, "says") + "\n    " + why + "\n";
            } else if (verdict != "skipped" && !reason.empty()) {
                told += id + "  passes, and is listed as a known deviation\n";
            }
        }
        if (kind.empty()) refuse(path + ": must begin with a header, which names the kind of its vectors");
    }
    string summary;
    for (auto& [verdict, count] : counts) summary += (summary.empty() ? "" : ", ") + verdict + " " + to_string(count);
    std::cout << told << summary << "\n";
    return status;
}
