// The cache that run_vectors.cpp plays vectors on: an example, and yours goes in its place.
// It is included behind what reads JSON there. Copyright: the authors of pymllm. Licence: Apache-2.0.

#include <iterator>
#include <optional>

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
        const std::set<string> known = {"page_size", "slots", "swa_slots",
                                        "window", "pool", "check_ownership"};
        for (auto& item : items_of(config)) if (!known.count(item.name)) return std::nullopt;
        PageCache cache{number_of(config, "page_size"), {}, {}, {}};
        bool is_ours = get(config, "window") == "null" && text_of(config, "pool") == "token";
        if (!is_ours || cache.size == 0) return std::nullopt;
        size_t end = cache.size + number_of(config, "slots");
        for (size_t slot = cache.size; slot < end; slot++) cache.free.push_back(slot);
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
        string sizes = "\"total_size\":" + total + ",\"protected_size\":" + to_string(held) +
                       ",\"evictable_size\":" + left + ",\"available_size\":" + to_string(free.size());
        return "{\"result\":{\"is\":" + result + "},\"effects\":[" + effects + "],\"sizes\":{" + sizes + "}}";
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
