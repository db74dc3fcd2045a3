/* A prefix cache that speaks pymllm's process protocol: one file, the C library and nothing else.
 *
 *     cc -O2 -o page_cache page_cache.c
 *     pymllm verify --command ./page_cache
 *
 * The cache is a tree of pages. Recency is a count of operations of its own, so that it needs no clock of the
 * protocol's. docs/protocol.md says what each line means. */

#define _POSIX_C_SOURCE 200809L
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- JSON: find a field of an object, in place ------------------------------------------------------------ */

static const char *skip_space(const char *at) { return at + strspn(at, " \t\r\n"); }

static const char *skip_string(const char *at) {
    for (at++; *at != '"'; at++) {
        if (*at == '\\') at++;
    }
    return at + 1;
}

static const char *skip_value(const char *at) {
    if (*at == '"') return skip_string(at);
    if (*at != '{' && *at != '[') return at + strcspn(at, ",}] \t\r\n");
    int depth = 0;
    do {
        if (*at == '"') {
            at = skip_string(at);
            continue;
        }
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        at++;
    } while (depth > 0);
    return at;
}

/* The value of a field, or NULL where the object has none of that name. */
static const char *field(const char *object, const char *name) {
    size_t length = strlen(name);
    const char *at = skip_space(object + 1);
    while (*at == '"') {
        bool is_it = strncmp(at + 1, name, length) == 0 && at[length + 1] == '"';
        at = skip_space(skip_string(at));
        at = skip_space(at + 1); /* the colon */
        if (is_it) return at;
        at = skip_space(skip_value(at));
        if (*at == ',') at = skip_space(at + 1);
    }
    return NULL;
}

static bool says(const char *value, const char *word) {
    size_t length = strlen(word);
    return value && strncmp(value + 1, word, length) == 0 && value[length + 1] == '"';
}

static long number(const char *value, long otherwise) {
    return value && *value != 'n' ? strtol(value, NULL, 10) : otherwise;
}

/* -- memory that grows ------------------------------------------------------------------------------------- */

typedef struct {
    long *items;
    size_t count, room;
} List;

static void *grow(void *memory, size_t bytes) {
    void *more = realloc(memory, bytes);
    if (!more) {
        puts("{\"say\":\"error\",\"message\":\"out of memory\"}");
        exit(1);
    }
    return more;
}

static void make_room(List *list, size_t room) {
    if (room > list->room) {
        list->room = 2 * room + 64;
        list->items = grow(list->items, list->room * sizeof *list->items);
    }
}

static void push(List *list, long item) {
    make_room(list, list->count + 1);
    list->items[list->count++] = item;
}

/* The integers of an array. */
static void read_list(const char *value, List *list) {
    list->count = 0;
    if (!value || *value != '[') return;
    for (const char *at = skip_space(value + 1); *at != ']';) {
        char *end;
        push(list, strtol(at, &end, 10));
        at = skip_space(end);
        if (*at == ',') at = skip_space(at + 1);
    }
}

/* -- the cache --------------------------------------------------------------------------------------------- */

typedef struct Page Page;
struct Page {
    Page *parent, *child, *sibling; /* first child, next child of the same parent */
    Page *older, *newer;            /* all pages, roots aside, by their last use */
    char *space;                    /* of a root: its namespace, as the line spelled it */
    long holds;                     /* at it or below */
    long depth;                     /* tokens up to its end; 0 for a root */
    long *tokens, *slots;
};

static long page_size, held_pages, all_pages;
static bool has_pool;
static List free_slots, freed, tokens, slots;
static size_t first_free;
static Page roots, ends; /* roots are the children of one; pages stand between ends.newer and ends.older */
static Page **nodes;     /* by step */
static size_t node_room;

static void unlink_use(Page *page) {
    page->older->newer = page->newer;
    page->newer->older = page->older;
}

static void use(Page *page) {
    if (page->older) unlink_use(page);
    page->older = ends.older;
    page->newer = &ends;
    ends.older->newer = page;
    ends.older = page;
}

static Page *add_page(Page *parent) {
    Page *page = grow(NULL, sizeof *page);
    *page = (Page){.parent = parent, .sibling = parent->child};
    parent->child = page;
    return page;
}

static void drop_page(Page *page) {
    Page **link = &page->parent->child;
    while (*link != page) link = &(*link)->sibling;
    *link = page->sibling;
    unlink_use(page);
    for (long at = 0; at < page_size && has_pool; at++) {
        push(&freed, page->slots[at]);
        push(&free_slots, page->slots[at]);
    }
    held_pages -= page->holds > 0;
    all_pages--;
    free(page->tokens);
    free(page);
}

/* Drop every page. Roots stay: a match of nothing returned one, and anybody may hold it at any time. */
static void drop_all(void) {
    while (ends.newer != &ends) {
        Page *page = ends.newer;
        while (page->child) page = page->child;
        drop_page(page);
    }
}

static void start(const char *config) {
    drop_all();
    while (roots.child) {
        Page *root = roots.child;
        roots.child = root->sibling;
        free(root->space);
        free(root);
    }
    page_size = number(field(config, "page_size"), 1);
    has_pool = says(field(config, "pool"), "token");
    held_pages = all_pages = 0;
    free_slots.count = first_free = 0;
    for (long slot = 0; slot < number(field(config, "slots"), 0) && has_pool; slot++) {
        push(&free_slots, page_size + slot); /* the slots of page 0 are for padding */
    }
    if (nodes) memset(nodes, 0, node_room * sizeof *nodes);
}

/* A namespace is a string, a number or nothing; equal ones are always spelled alike. */
static Page *root_of(const char *key) {
    const char *space = field(key, "extra_key");
    if (!space) space = "null";
    size_t length = (size_t)(skip_value(space) - space);
    for (Page *root = roots.child; root; root = root->sibling) {
        if (strlen(root->space) == length && strncmp(root->space, space, length) == 0) return root;
    }
    Page *root = add_page(&roots);
    root->space = grow(NULL, length + 1);
    memcpy(root->space, space, length);
    root->space[length] = 0;
    return root;
}

/* The end of the longest cached prefix, whose pages are used now, the shallowest first. */
static Page *find(const char *key) {
    read_list(field(key, "tokens"), &tokens);
    tokens.count -= tokens.count % (size_t)page_size;
    Page *page = root_of(key);
    for (size_t at = 0; at < tokens.count; at += (size_t)page_size) {
        Page *child = page->child;
        size_t bytes = (size_t)page_size * sizeof *tokens.items;
        while (child && memcmp(child->tokens, tokens.items + at, bytes) != 0) child = child->sibling;
        if (!child) break;
        use(page = child);
    }
    return page;
}

static void keep_node(long step, Page *page) {
    if ((size_t)step >= node_room) {
        size_t room = 2 * (size_t)step + 64;
        nodes = grow(nodes, room * sizeof *nodes);
        memset(nodes + node_room, 0, (room - node_room) * sizeof *nodes);
        node_room = room;
    }
    nodes[step] = page;
}

static void print_list(const long *items, size_t count) {
    putchar('[');
    for (size_t at = 0; at < count; at++) printf(at ? ",%ld" : "%ld", items[at]);
    putchar(']');
}

static void match(long step, const char *op) {
    Page *end = find(field(op, "key"));
    keep_node(step, end);
    make_room(&slots, (size_t)end->depth);
    for (Page *page = end; page->depth; page = page->parent) {
        memcpy(slots.items + page->depth - page_size, page->slots, (size_t)page_size * sizeof *page->slots);
    }
    fputs("{\"is\":\"matched\",\"slots\":", stdout);
    print_list(slots.items, (size_t)end->depth);
    printf(",\"prefix_len\":%ld,\"node_len\":%ld}", end->depth, end->depth);
}

static void insert(long step, const char *op) {
    Page *page = find(field(op, "key"));
    long known = page->depth, length = (long)tokens.count;
    read_list(field(op, "slots"), &slots);
    for (long at = known; at < length; at += page_size) {
        page = add_page(page);
        page->depth = at + page_size;
        size_t bytes = (size_t)page_size * sizeof(long);
        page->tokens = grow(NULL, 2 * bytes);
        page->slots = page->tokens + page_size;
        memcpy(page->tokens, tokens.items + at, bytes);
        memcpy(page->slots, slots.items + at, bytes);
        use(page);
        all_pages++;
    }
    keep_node(step, page);
    printf("{\"is\":\"inserted\",\"prefix_len\":%ld,\"adopted\":[", known);
    if (known < length) printf("[%ld,%ld]", known, length);
    printf("],\"node_len\":%ld}", length);
}

static void evict(long wanted) {
    long gone = 0;
    for (Page *page = ends.newer; page != &ends && gone < wanted;) {
        if (page->child || page->holds) {
            page = page->newer;
            continue;
        }
        drop_page(page);
        gone += page_size;
        page = ends.newer; /* its parent may be the oldest leaf now */
    }
    printf("{\"is\":\"evicted\",\"full\":%ld}", gone);
}

static void hold(Page *page, long by) {
    for (; page && page->depth; page = page->parent) {
        held_pages -= page->holds > 0;
        page->holds += by;
        held_pages += page->holds > 0;
    }
}

static void alloc(long wanted) {
    long count = (wanted + page_size - 1) / page_size * page_size;
    if (!has_pool) {
        fputs("{\"is\":\"unsupported\",\"what\":\"there is no pool\"}", stdout);
    } else if ((size_t)count > free_slots.count - first_free) {
        fputs("{\"is\":\"no_room\"}", stdout);
    } else {
        fputs("{\"is\":\"slots\",\"slots\":", stdout);
        print_list(free_slots.items + first_free, (size_t)wanted);
        putchar('}');
        first_free += (size_t)count;
        if (2 * first_free > free_slots.count) { /* as many moved as handed out: the list stays short */
            free_slots.count -= first_free;
            memmove(free_slots.items, free_slots.items + first_free, free_slots.count * sizeof(long));
            first_free = 0;
        }
    }
}

/* Slots come back from the caller, who knows: that is no effect. A page comes back once, as a whole. */
static void give_back(const char *op) {
    read_list(field(op, "slots"), &slots);
    for (size_t at = 0; at < slots.count; at++) {
        long page = slots.items[at] / page_size;
        size_t before = 0;
        while (before < at && slots.items[before] / page_size != page) before++;
        for (long slot = 0; slot < page_size && before == at; slot++) push(&free_slots, page * page_size + slot);
    }
}

/* -- the conversation -------------------------------------------------------------------------------------- */

static void answer_op(long step, const char *op) {
    const char *name = field(op, "op");
    const char *done = "{\"is\":\"done\"}";
    freed.count = 0;
    printf("{\"say\":\"outcome\",\"step\":%ld,\"outcome\":{\"result\":", step);
    if (says(name, "match")) {
        match(step, op);
    } else if (says(name, "insert")) {
        insert(step, op);
    } else if (says(name, "evict")) {
        evict(number(field(op, "tokens"), 0));
    } else if (says(name, "lock")) {
        keep_node(step, nodes[number(field(op, "of"), 0)]);
        hold(nodes[step], 1);
        fputs("{\"is\":\"locked\"}", stdout);
    } else if (says(name, "unlock")) {
        hold(nodes[number(field(op, "lock"), 0)], -1);
        fputs(done, stdout);
    } else if (says(name, "reset")) {
        drop_all();
        fputs(done, stdout);
    } else if (says(name, "alloc")) {
        alloc(number(field(op, "tokens"), 0));
    } else if (says(name, "free")) {
        give_back(op);
        fputs(done, stdout);
    } else {
        fputs("{\"is\":\"unsupported\",\"what\":\"not in this cache\"}", stdout);
    }
    fputs(",\"effects\":[", stdout);
    if (freed.count) {
        fputs("{\"call\":\"free\",\"slots\":", stdout);
        print_list(freed.items, freed.count);
        putchar('}');
    }
    long total = all_pages * page_size, held = held_pages * page_size;
    printf("],\"sizes\":{\"total_size\":%ld,\"protected_size\":%ld,\"evictable_size\":%ld", total, held,
           total - held);
    if (has_pool) printf(",\"available_size\":%zu", free_slots.count - first_free);
    puts("}}}");
}

int main(void) {
    char *line = NULL;
    size_t room = 0;
    ends.older = ends.newer = &ends;
    while (getline(&line, &room, stdin) > 0) {
        const char *say = field(line, "say");
        if (says(say, "hello")) {
            puts("{\"say\":\"hello\",\"protocol\":1,\"name\":\"page-cache\",\"version\":\"1.0\",\"language\":\"C\","
                 "\"kind\":\"prefix\",\"capabilities\":[\"pool\",\"extra_key\",\"exact_lru\",\"engine\"],"
                 "\"configurations\":["
                 "{\"page_size\":1,\"window\":null,\"pool\":\"token\",\"slots\":24,\"swa_slots\":0},"
                 "{\"page_size\":4,\"window\":null,\"pool\":\"token\",\"slots\":48,\"swa_slots\":0}]}");
        } else if (says(say, "start")) {
            start(field(line, "config"));
            printf("{\"say\":\"started\",\"capabilities\":[%s\"extra_key\",\"exact_lru\"]}\n",
                   has_pool ? "\"pool\",\"engine\"," : "");
        } else if (says(say, "op")) {
            answer_op(number(field(line, "step"), 0), field(line, "op"));
        } else if (says(say, "bye")) {
            break;
        } else {
            puts("{\"say\":\"error\",\"message\":\"not known here\"}");
        }
        const char *flush = field(line, "flush");
        if (!flush || *flush == 't') fflush(stdout);
    }
    return 0;
}
