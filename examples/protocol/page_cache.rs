//! A prefix cache that speaks pymllm's process protocol: one file, the standard library and nothing else.
//!
//!     rustc --edition 2021 -O page_cache.rs
//!     pymllm verify --command ./page_cache
//!
//! The cache is a map from everything up to the end of a page to that page. Recency is a count of operations of
//! its own, so that it needs no clock of the protocol's. docs/protocol.md says what each line means.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, BufRead, Write};

// -- JSON: as much as the protocol needs ----------------------------------------------------------------------

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Json {
    Null,
    Bool(bool),
    Number(i64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

static NULL: Json = Json::Null;

impl Json {
    /// The value of a field; null where there is none.
    fn get(&self, name: &str) -> &Json {
        match self {
            Json::Object(fields) => fields.iter().find(|(key, _)| key == name).map_or(&NULL, |(_, it)| it),
            _ => &NULL,
        }
    }

    fn text(&self) -> &str {
        if let Json::Text(text) = self { text } else { "" }
    }

    fn number(&self) -> i64 {
        if let Json::Number(number) = self { *number } else { 0 }
    }

    fn numbers(&self) -> Vec<i64> {
        if let Json::List(items) = self { items.iter().map(Json::number).collect() } else { Vec::new() }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn peek(&mut self) -> Option<u8> {
        while self.rest.first()?.is_ascii_whitespace() {
            self.next();
        }
        self.rest.first().copied()
    }

    fn word(&mut self, word: &str, value: Json) -> Option<Json> {
        self.rest = self.rest.strip_prefix(word.as_bytes())?;
        Some(value)
    }

    fn value(&mut self) -> Option<Json> {
        match self.peek()? {
            b'{' => {
                let mut fields = Vec::new();
                self.items(b'}', |reader| {
                    reader.peek()?;
                    let name = reader.string()?;
                    (reader.peek()? == b':').then(|| reader.next())?;
                    fields.push((name, reader.value()?));
                    Some(())
                })?;
                Some(Json::Object(fields))
            }
            b'[' => {
                let mut items = Vec::new();
                self.items(b']', |reader| {
                    items.push(reader.value()?);
                    Some(())
                })?;
                Some(Json::List(items))
            }
            b'"' => self.string().map(Json::Text),
            b't' => self.word("true", Json::Bool(true)),
            b'f' => self.word("false", Json::Bool(false)),
            b'n' => self.word("null", Json::Null),
            _ => {
                let digits = self.rest.iter().take_while(|it| matches!(it, b'-' | b'0'..=b'9')).count();
                let (number, rest) = self.rest.split_at(digits);
                self.rest = rest;
                std::str::from_utf8(number).ok()?.parse().ok().map(Json::Number)
            }
        }
    }

    fn items(&mut self, end: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.next();
        if self.peek()? == end {
            self.next();
            return Some(());
        }
        loop {
            item(self)?;
            let mark = self.peek()?;
            self.next();
            if mark == end {
                return Some(());
            }
            (mark == b',').then_some(())?;
        }
    }

    /// A string. Only namespaces hold anything but plain letters, and are only compared: escapes stay as they are.
    fn string(&mut self) -> Option<String> {
        (self.next()? == b'"').then_some(())?;
        let mut bytes = Vec::new();
        loop {
            match self.next()? {
                b'"' => return String::from_utf8(bytes).ok(),
                b'\\' => bytes.extend([b'\\', self.next()?]),
                other => bytes.push(other),
            }
        }
    }
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let shown: Vec<String> = items.into_iter().map(|it| it.to_string()).collect();
    format!("[{}]", shown.join(","))
}

// -- the cache ------------------------------------------------------------------------------------------------

/// A namespace and the tokens up to the end of a page.
type Prefix = (Json, Vec<i64>);

struct Page {
    slots: Vec<i64>,
    used: (u64, usize), // when, and how deep: smaller is older
}

#[derive(Default)]
struct PageCache {
    page_size: usize,
    has_pool: bool,
    free: Vec<i64>,
    freed: Vec<i64>, // what the operation in progress gave back to the pool by itself
    pages: BTreeMap<Prefix, Page>, // in order: the same program does the same each time
    holds: HashMap<Prefix, i64>, // at the page or below it
    nodes: HashMap<i64, Prefix>, // by step
    now: u64,
}

impl PageCache {
    fn new(config: &Json) -> PageCache {
        let page_size = config.get("page_size").number();
        let has_pool = config.get("pool").text() == "token";
        let slots = if has_pool { config.get("slots").number() } else { 0 };
        // The slots of page 0 are for padding.
        let free = (page_size..page_size + slots).collect();
        PageCache { page_size: page_size as usize, has_pool, free, ..Default::default() }
    }

    fn prefixes(&self, (space, tokens): &Prefix) -> Vec<Prefix> {
        let pages = tokens.len() / self.page_size;
        (1..=pages).map(|count| (space.clone(), tokens[..count * self.page_size].to_vec())).collect()
    }

    /// The key cut to whole pages, and how many of its tokens are cached; what is found is used now.
    fn find(&mut self, key: &Json) -> (Prefix, usize) {
        let mut tokens = key.get("tokens").numbers();
        tokens.truncate(tokens.len() / self.page_size * self.page_size);
        let whole = (key.get("extra_key").clone(), tokens);
        let mut known = 0;
        self.now += 1;
        for prefix in self.prefixes(&whole) {
            let Some(page) = self.pages.get_mut(&prefix) else { break };
            known = prefix.1.len();
            page.used = (self.now, known);
        }
        (whole, known)
    }

    fn find_match(&mut self, step: i64, op: &Json) -> String {
        let ((space, mut tokens), known) = self.find(op.get("key"));
        tokens.truncate(known);
        let node = (space, tokens);
        let slots = self.prefixes(&node).into_iter().flat_map(|it| self.pages[&it].slots.clone());
        let shown = list(slots);
        self.nodes.insert(step, node);
        format!(r#"{{"is":"matched","slots":{shown},"prefix_len":{known},"node_len":{known}}}"#)
    }

    fn insert(&mut self, step: i64, op: &Json) -> String {
        let (whole, known) = self.find(op.get("key"));
        let (slots, length) = (op.get("slots").numbers(), whole.1.len());
        for prefix in self.prefixes(&whole).into_iter().skip(known / self.page_size) {
            let end = prefix.1.len();
            let page = Page { slots: slots[end - self.page_size..end].to_vec(), used: (self.now, end) };
            self.pages.insert(prefix, page);
        }
        self.nodes.insert(step, whole);
        let adopted = if known < length { format!("[{known},{length}]") } else { String::new() };
        format!(r#"{{"is":"inserted","prefix_len":{known},"adopted":[{adopted}],"node_len":{length}}}"#)
    }

    fn evict(&mut self, wanted: i64) -> String {
        let mut gone = 0;
        while gone < wanted {
            let parent = |it: &Prefix| (it.0.clone(), it.1[..it.1.len() - self.page_size].to_vec());
            let inner: BTreeSet<Prefix> = self.pages.keys().map(parent).collect();
            let is_held = |it: &Prefix| self.holds.get(it).is_some_and(|count| *count > 0);
            let leaves = self.pages.iter().filter(|(it, _)| !inner.contains(*it) && !is_held(it));
            let Some((oldest, _)) = leaves.min_by_key(|(_, page)| page.used) else { break };
            let oldest = oldest.clone();
            self.drop_page(&oldest);
            gone += self.page_size as i64;
        }
        format!(r#"{{"is":"evicted","full":{gone}}}"#)
    }

    fn drop_page(&mut self, prefix: &Prefix) {
        let Some(page) = self.pages.remove(prefix) else { return };
        if self.has_pool {
            self.freed.extend(&page.slots);
            self.free.extend(&page.slots);
        }
    }

    fn hold(&mut self, node: &Prefix, by: i64) {
        for prefix in self.prefixes(node) {
            *self.holds.entry(prefix).or_default() += by;
        }
    }

    fn lock(&mut self, step: i64, of: i64) -> String {
        let node = self.nodes[&of].clone();
        self.hold(&node, 1);
        self.nodes.insert(step, node);
        r#"{"is":"locked"}"#.into()
    }

    fn unlock(&mut self, lock: i64) -> String {
        let node = self.nodes[&lock].clone();
        self.hold(&node, -1);
        DONE.into()
    }

    fn reset(&mut self) -> String {
        for prefix in self.pages.keys().cloned().collect::<Vec<_>>() {
            self.drop_page(&prefix);
        }
        self.holds.clear();
        DONE.into()
    }

    fn alloc(&mut self, wanted: i64) -> String {
        let wanted = wanted as usize;
        let count = wanted.div_ceil(self.page_size) * self.page_size;
        if !self.has_pool {
            return r#"{"is":"unsupported","what":"there is no pool"}"#.into();
        }
        if count > self.free.len() {
            return r#"{"is":"no_room"}"#.into();
        }
        let taken: Vec<i64> = self.free.drain(..count).collect();
        format!(r#"{{"is":"slots","slots":{}}}"#, list(&taken[..wanted]))
    }

    /// Slots come back from the caller, who knows: that is no effect. A page comes back once, as a whole.
    fn give_back(&mut self, slots: Vec<i64>) -> String {
        let size = self.page_size as i64;
        let mut pages: Vec<i64> = Vec::new();
        for page in slots.iter().map(|slot| slot / size) {
            if !pages.contains(&page) {
                pages.push(page);
            }
        }
        self.free.extend(pages.iter().flat_map(|page| page * size..page * size + size));
        DONE.into()
    }

    fn outcome(&mut self, step: i64, op: &Json) -> String {
        self.freed.clear();
        let result = match op.get("op").text() {
            "match" => self.find_match(step, op),
            "insert" => self.insert(step, op),
            "evict" => self.evict(op.get("tokens").number()),
            "lock" => self.lock(step, op.get("of").number()),
            "unlock" => self.unlock(op.get("lock").number()),
            "reset" => self.reset(),
            "alloc" => self.alloc(op.get("tokens").number()),
            "free" => self.give_back(op.get("slots").numbers()),
            other => format!(r#"{{"is":"unsupported","what":"{other}"}}"#),
        };
        let effects = match self.freed.as_slice() {
            [] => String::new(),
            freed => format!(r#"{{"call":"free","slots":{}}}"#, list(freed)),
        };
        format!(r#"{{"result":{result},"effects":[{effects}],"sizes":{}}}"#, self.sizes())
    }

    fn sizes(&self) -> String {
        let held = self.pages.keys().filter(|it| self.holds.get(*it).is_some_and(|count| *count > 0)).count();
        let (total, held) = (self.page_size * self.pages.len(), self.page_size * held);
        let pool = if self.has_pool { format!(r#","available_size":{}"#, self.free.len()) } else { String::new() };
        let evictable = total - held;
        format!(r#"{{"total_size":{total},"protected_size":{held},"evictable_size":{evictable}{pool}}}"#)
    }
}

// -- the conversation -----------------------------------------------------------------------------------------

const DONE: &str = r#"{"is":"done"}"#;

const HELLO: &str = concat!(
    r#"{"say":"hello","protocol":1,"name":"page-cache","version":"1.0","language":"Rust","kind":"prefix","#,
    r#""capabilities":["pool","extra_key","exact_lru","engine"],"configurations":["#,
    r#"{"page_size":1,"window":null,"pool":"token","slots":24,"swa_slots":0},"#,
    r#"{"page_size":4,"window":null,"pool":"token","slots":48,"swa_slots":0}]}"#,
);

fn main() -> io::Result<()> {
    let mut cache = PageCache::default();
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let message = Reader { rest: line?.as_bytes() }.value().unwrap_or(Json::Null);
        match message.get("say").text() {
            "hello" => writeln!(out, "{HELLO}")?,
            "start" => {
                cache = PageCache::new(message.get("config"));
                let pool = if cache.has_pool { r#""pool","engine","# } else { "" };
                writeln!(out, r#"{{"say":"started","capabilities":[{pool}"extra_key","exact_lru"]}}"#)?;
            }
            "op" => {
                let step = message.get("step").number();
                let outcome = cache.outcome(step, message.get("op"));
                writeln!(out, r#"{{"say":"outcome","step":{step},"outcome":{outcome}}}"#)?;
            }
            "bye" => break,
            _ => writeln!(out, r#"{{"say":"error","message":"not known here"}}"#)?,
        }
        if *message.get("flush") != Json::Bool(false) {
            out.flush()?;
        }
    }
    Ok(())
}
