//! Plays cache vectors on a cache; one file, and no crate is needed:
//! `rustc --edition 2021 -O run_vectors.rs && ./run_vectors ../../v1/prefix.jsonl [--known known.json]`.
//! Copy it, and put your cache in the place of `PageCache`. docs/vectors.md has the format and the rules.
//! Copyright: the authors of pymllm. Licence: Apache-2.0.

use std::{collections::BTreeMap, env, fs, panic, process::exit};

// -- JSON: a value is its text, in ASCII without escapes, and a number an integer of 64 bits --------------

const LIMIT: usize = 1 << 20; // of counts, sizes and slots
const LEVELS: u32 = 99; // of lists in lists
type Items<'a> = Vec<(&'a str, &'a str)>;
/// The items of the value that a text begins with, an object's with their names, and the rest behind it.
fn scan(text: &str, levels: u32) -> Option<(Items<'_>, &str)> {
    let mut items = Items::new();
    let close = match text.as_bytes().first()? {
        b'[' => ']',
        b'{' => '}',
        b'"' => return Some((items, behind_text(text)?)),
        _ => {
            let end = text.find(|it: char| !it.is_ascii_alphanumeric() && it != '-').unwrap_or(text.len());
            let is_number = |it: i128| it.to_string() == text[..end] && it.unsigned_abs() < 10u128.pow(19);
            let is_word = text[..end].parse().is_ok_and(is_number) || matches!(&text[..end], "null" | "true" | "false");
            return is_word.then_some((items, &text[end..]));
        }
    };
    let mut rest = skip(&text[1..]);
    while !rest.starts_with(close) {
        let (mut name, mut value) = ("", if items.is_empty() { rest } else { skip(rest.strip_prefix(',')?) });
        if close == '}' {
            rest = behind_text(value)?;
            name = &value[1..value.len() - rest.len() - 1];
            value = skip(skip(rest).strip_prefix(':')?);
        }
        rest = scan(value, levels.checked_sub(1)?)?.1;
        items.push((name, &value[..value.len() - rest.len()]));
        rest = skip(rest);
    }
    Some((items, &rest[1..]))
}

fn behind_text(text: &str) -> Option<&str> {
    let (inner, rest) = text.strip_prefix('"')?.split_once('"')?;
    inner.bytes().all(|it| (b' '..=127).contains(&it) && it != b'\\').then_some(rest)
}

fn skip(text: &str) -> &str { text.trim_start_matches([' ', '\t', '\r', '\n']) }
fn items(text: &str) -> Items<'_> { scan(text, LEVELS).map_or(vec![], |it| it.0) }

/// A field of an object; where there is none, it and its text are empty, and its number is 0.
fn get<'a>(text: &'a str, name: &str) -> &'a str {
    items(text).iter().find(|it| it.0 == name).map_or("", |it| it.1)
}
fn text_of<'a>(text: &'a str, name: &str) -> &'a str {
    get(text, name).strip_prefix('"').map_or("", |it| &it[..it.len() - 1])
}
fn number_of(text: &str, name: &str) -> usize {
    get(text, name).parse().ok().filter(|it| *it <= LIMIT).unwrap_or(0)
}
fn numbers(text: &str) -> Vec<usize> { items(text).iter().filter_map(|it| it.1.parse().ok()).collect() }

// -- comparison: the rules of docs/vectors.md ------------------------------------------------------------------

/// Whether an answer is as expected; `ended` is set where it is another one that is right, and the vector ends.
fn is_like(expected: &str, seen: &str, ended: &mut bool) -> bool {
    let (all, mut left, is_list) = (items(expected), items(seen), seen.starts_with('['));
    let (form, value) = *all.iter().find(|it| it.0.starts_with('$')).unwrap_or(&(expected.get(..1).unwrap_or(""), ""));
    match form {
        "{" => seen.starts_with('{') && all.iter().all(|(name, value)| {
            let other = match (*name, get(seen, name)) {
                ("is", "") => "null", ("effects", "") => "[]", ("result", "") => "{}", it => it.1,
            };
            other.is_empty() || is_like(value, other, ended)
        }),
        "[" => is_list && all.len() == left.len()
            && all.iter().zip(left).all(|(one, other)| is_like(one.1, other.1, ended)),
        "$of" | "$halves" => value == if is_list { seen.into() } else { format!("[{seen}]") },
        "$new" => are_new(expected, &numbers(seen)),
        "$set" => is_list && items(value).len() == left.len() && items(value).iter().all(|it| {
            let place = left.iter().position(|other| is_like(it.1, other.1, ended));
            place.map(|at| left.remove(at)).is_some()
        }),
        "$any" => items(value).iter().any(|it| is_like(it.1, seen, ended)),
        "$free" => true,
        "$calls" => are_calls(expected, seen, ended),
        "$may" => is_like(value, seen, ended) || {
            let ways = get(expected, "or");
            *ended |= ways.is_empty() || items(ways).iter().any(|it| is_like(it.1, seen, &mut false));
            *ended
        },
        _ => expected == seen,
    }
}

/// Whether these are different numbers that fill pages from their beginning, none of a taken page.
fn are_new(expected: &str, seen: &[usize]) -> bool {
    let [count, page, least, most] = ["$new", "page", "least", "most"].map(|it| number_of(expected, it));
    let taken = numbers(items(get(expected, "but")).first().map_or("", |it| it.1));
    seen.len() == count && page > 0 && seen.iter().enumerate().all(|(at, it)| {
        (least..=most).contains(it)
            && !seen[..at].contains(it)
            && !taken.iter().any(|other| other / page == it / page)
            && *it == seen[at - at % page] + at % page
            && it % page == at % page
    })
}

/// Whether calls are as many as expected, or of the slots that are, and callbacks saw the sizes that they must.
fn are_calls(expected: &str, seen: &str, ended: &mut bool) -> bool {
    let (calls, inside) = (get(expected, "$calls"), get(expected, "inside"));
    let is_right = |(name, value): &(&str, &str)| {
        let same = items(seen).into_iter().filter(|it| text_of(it.1, "call") == *name);
        if !value.starts_with('{') { return *value == same.count().to_string() }
        let mut wanted: Vec<_> = items(value).iter().flat_map(|it| numbers(it.1)).collect();
        let mut slots: Vec<_> = same.flat_map(|it| numbers(get(it.1, "slots"))).collect();
        (slots.sort(), wanted.sort());
        slots == wanted
    };
    items(calls).iter().all(is_right) && items(seen).iter().all(|it| match text_of(it.1, "call") {
        "callback" => inside.is_empty() || is_like(inside, get(it.1, "sizes"), ended),
        name => !get(calls, name).is_empty(),
    })
}

// -- playing ---------------------------------------------------------------------------------------------------

/// A value with numbers in the place of spans: of the answer of an earlier step, or of step 0 they themselves.
fn resolve(value: &str, given: &[String], kind: &str) -> String {
    if !get(value, "step").is_empty() && !get(value, "stop").is_empty() {
        let [step, start, stop] = ["step", "start", "stop"].map(|it| number_of(value, it));
        let answer = if step > 0 { given.get(step - 1).map_or("", |it| get(it, kind)) } else { "" };
        let all = if step > 0 { numbers(answer) } else { (0..stop).collect() };
        return join(all.iter().take(stop).skip(start));
    }
    let parts = items(value).into_iter().map(|(name, it)| {
        let part = resolve(it, given, if name == "$halves" { "swa_slots" } else { kind });
        let is_one = value.starts_with('{') && !part.starts_with(['[', '{', '"']); // perhaps a span alone
        let part = if is_one { part.split(',').next().filter(|it| *it != "").unwrap_or("null") } else { &part };
        if value.starts_with('{') { format!("\"{name}\":{part}") } else { part.into() }
    });
    let inner = join(parts.filter(|it| !it.is_empty()));
    match &value[..1] { "[" => format!("[{inner}]"), "{" => format!("{{{inner}}}"), _ => value.into() }
}
fn join(items: impl Iterator<Item = impl ToString>) -> String {
    items.map(|it| it.to_string()).collect::<Vec<_>>().join(",")
}

type Told = (&'static str, String);
/// What a cache answers, or why the vector failed where it panics.
fn ask<T>(doing: &str, call: impl FnOnce() -> T) -> Result<T, Told> {
    panic::catch_unwind(panic::AssertUnwindSafe(call)).map_err(|it| {
        let said = it.downcast_ref::<String>().map(String::as_str).or(it.downcast_ref::<&str>().copied());
        ("failed", format!("{doing}\n    raised   {}", said.unwrap_or("a panic")))
    })
}

/// What becomes of a vector: passed, failed, other way or skipped; and why it failed, or was skipped.
fn play(vector: &str, kind: &str) -> Result<Told, Told> {
    let (skipped, config, needs) = (|why| Ok(("skipped", why)), get(vector, "config"), items(get(vector, "needs")));
    let missing = needs.iter().filter(|it| !PageCache::CLAIMS.contains(&it.1));
    let missing: Vec<_> = missing.map(|it| it.1.strip_prefix('"').map_or("", |it| it.trim_end_matches('"'))).collect();
    if kind != PageCache::KIND { return skipped(format!("is not of kind {kind}")) }
    if !missing.is_empty() { return skipped(format!("does not claim {}", missing.join(", "))) }
    let built = ask(&format!("build: {config}"), || PageCache::build(config))?;
    let Some(mut cache) = built else { return skipped("cannot be built so".into()) };
    let (mut given, mut ended) = (vec![], false);
    for (number, (_, step)) in (1..).zip(items(get(vector, "steps"))) {
        let [op, expected] = ["op", "expect"].map(|it| resolve(get(step, it), &given, "slots"));
        let doing = format!("step {number}: {op}");
        let seen = ask(&doing, || cache.apply(number, &op))?;
        if text_of(get(&seen, "result"), "is") == "unsupported" {
            return skipped(format!("{} is unsupported", text_of(&op, "op")))
        }
        let is_right = is_like(&expected, &seen, &mut ended);
        if ended { return Ok(("other way", "".into())) }
        if !is_right { return Ok(("failed", format!("{doing}\n    expected {expected}\n    seen     {seen}"))) }
        given.push(get(&seen, "result").to_string());
    }
    Ok(("passed", "".into()))
}

// -- an example: yours instead, with `KIND`, `CLAIMS`, `build` and `apply` -------------------------------------

struct Page { slots: Vec<usize>, used: usize, holds: i32 }
/// Pages of slots by prefix, in a pool of its own; the least recent page that none goes on from goes first.
struct PageCache {
    size: usize,
    free: Vec<usize>,
    pages: BTreeMap<String, Page>,  // by a namespace and the tokens up to their ends
    nodes: BTreeMap<usize, String>, // by step: the prefix that it returned
}

impl PageCache {
    const KIND: &'static str = "prefix";
    const CLAIMS: [&'static str; 3] = [r#""pool""#, r#""extra_key""#, r#""exact_lru""#];

    /// A cache; none where it cannot be built so.
    fn build(config: &str) -> Option<PageCache> {
        let known = ["page_size", "slots", "swa_slots", "window", "pool", "check_ownership"];
        let is_known = get(config, "window") == "null" && items(config).iter().all(|it| known.contains(&it.0));
        let (size, slots) = (number_of(config, "page_size"), number_of(config, "slots"));
        let is_ours = is_known && text_of(config, "pool") == "token" && size > 0;
        let free = (size..size + slots).collect(); // page 0 is for padding
        is_ours.then_some(PageCache { size, free, pages: BTreeMap::new(), nodes: BTreeMap::new() })
    }

    /// Carry an operation out; slots in it are numbers, nodes and holds the steps that returned them.
    fn apply(&mut self, step: usize, op: &str) -> String {
        let (name, wanted, mut freed) = (text_of(op, "op"), number_of(op, "tokens"), vec![]);
        let result = match name {
            "match" | "insert" => self.walk(step, op, name == "insert"),
            "evict" => {
                while freed.len() < wanted {
                    let is_last = |page: &str| self.pages.keys().filter(|it| it.starts_with(page)).count() == 1;
                    let leaves = self.pages.iter().filter(|it| it.1.holds <= 0 && is_last(it.0));
                    let Some(oldest) = leaves.min_by_key(|it| it.1.used).map(|it| it.0.clone()) else { break };
                    freed.extend(self.pages.remove(&oldest).unwrap().slots);
                }
                format!(r#""evicted","full":{}"#, freed.len())
            }
            "lock" | "unlock" => {
                let (of, by) = if name == "lock" { ("of", 1) } else { ("lock", -1) };
                let node = self.nodes.get(&number_of(op, of)).cloned().unwrap_or_default();
                self.pages.iter_mut().filter(|it| node.starts_with(it.0)).for_each(|it| it.1.holds += by);
                self.nodes.insert(step, node);
                if name == "lock" { r#""locked""#.into() } else { r#""done""#.into() }
            }
            "reset" => {
                while let Some((_, page)) = self.pages.pop_first() { freed.extend(page.slots) }
                r#""done""#.into()
            }
            "alloc" if wanted > self.free.len() / self.size * self.size => r#""no_room""#.into(),
            "alloc" => {
                let taken: Vec<_> = self.free.drain(..wanted.next_multiple_of(self.size)).collect();
                format!(r#""slots","slots":[{}]"#, join(taken[..wanted].iter()))
            }
            _ => format!(r#""unsupported","what":"{name}""#),
        };
        let calls = format!(r#"{{"call":"free","slots":[{}]}}"#, join(freed.iter()));
        let effects = if freed.is_empty() { "" } else { &calls };
        self.free.extend(freed);
        let (held, free) = (self.pages.values().filter(|it| it.holds > 0).count() * self.size, self.free.len());
        let (total, left) = (self.pages.len() * self.size, self.pages.len() * self.size - held);
        let sizes = format!(r#""total_size":{total},"protected_size":{held},"evictable_size":{left}"#);
        format!(r#"{{"result":{{"is":{result}}},"effects":[{effects}],"sizes":{{{sizes},"available_size":{free}}}}}"#)
    }
    fn walk(&mut self, step: usize, op: &str, is_insert: bool) -> String {
        let (key, given) = (get(op, "key"), numbers(get(op, "slots")));
        let (mut node, mut found, mut length) = (get(key, "extra_key").to_string() + "|", Vec::<usize>::new(), 0);
        for tokens in items(get(key, "tokens")).chunks_exact(self.size) {
            let prefix = tokens.iter().fold(node.clone(), |all, it| all + it.1 + ",");
            if let Some(page) = self.pages.get_mut(&prefix) {
                page.used = step;
                found.extend(&page.slots);
            } else if is_insert && length + self.size <= given.len() {
                let slots = given[length..length + self.size].to_vec();
                self.pages.insert(prefix.clone(), Page { slots, used: step, holds: 0 });
            } else { break }
            (node, length) = (prefix, length + self.size);
        }
        self.nodes.insert(step, node);
        let (known, slots) = (found.len(), join(found.iter()));
        let list = if !is_insert { slots } else if known < length { format!("[{known},{length}]") } else { "".into() };
        let (is, name) = if is_insert { ("inserted", "adopted") } else { ("matched", "slots") };
        format!(r#""{is}","prefix_len":{known},"{name}":[{list}],"node_len":{length}"#)
    }
}

// -- the command -----------------------------------------------------------------------------------------------

const USAGE: &str = "usage: run_vectors FILE... [--known FILE], with one list at most";
const OTHER: &str = "take the runner that came with these vectors";
const HEADER: &[&str] = &["format", "schema", "kind"];
const VECTOR: &[&str] = &["id", "law", "says", "needs", "config", "steps"];
fn refuse(why: &str) -> ! { eprintln!("{why}"); exit(2) }
fn read(path: &str) -> String {
    let bytes = fs::read(path).unwrap_or_else(|_| refuse(&format!("{path}: must be a file that can be read")));
    String::from_utf8_lossy(&bytes).into_owned()
}
fn check(place: &str, text: &str, fields: &[&str]) {
    let is_object = text.starts_with('{') && scan(text, LEVELS).is_some_and(|it| skip(it.1).is_empty());
    if !is_object || fields.iter().any(|it| get(text, it).is_empty()) {
        let names = if fields.is_empty() { "reasons by ids".into() } else { fields.join(", ") };
        refuse(&format!("{place}: must be plain JSON, an object with {names}"))
    }
}

fn main() {
    let (mut files, mut lists, mut words) = (vec![], vec![], env::args().skip(1));
    while let Some(word) = words.next() {
        if word == "--known" { lists.push(words.next().unwrap_or_default()) } else { files.push(word) }
    }
    let is_odd = lists.len() > 1 || lists.contains(&String::new()) || files.iter().any(|it| it.starts_with('-'));
    if files.is_empty() || is_odd { refuse(USAGE) }
    let known = lists.first().map_or("{}".into(), |it| read(it));
    lists.iter().for_each(|it| check(&format!("--known {it}"), skip(&known), &[]));
    panic::set_hook(Box::new(|_| ())); // what the cache says is told with the vector
    let (mut counts, mut skips, mut told, mut status) = (BTreeMap::new(), BTreeMap::new(), String::new(), 0);
    for path in &files {
        let (text, mut kind) = (read(path), "");
        for (number, line) in (1..).zip(text.lines().map(skip)).filter(|it| !it.1.is_empty()) {
            let place = format!("{path}: line {number}");
            check(&place, line, if kind.is_empty() { HEADER } else { VECTOR });
            if kind.is_empty() {
                let (schema, is_digit) = (get(line, "schema"), |it: char| it == '-' || it.is_ascii_digit());
                let shown = if schema.starts_with(is_digit) { schema } else { "no number" };
                if schema != "1" { refuse(&format!("{place}: schema is {shown}, and must be 1: {OTHER}")) }
                kind = text_of(line, "kind");
                continue;
            }
            items(get(line, "steps")).iter().for_each(|it| check(&place, it.1, &["op", "expect"]));
            let (verdict, why) = play(line, kind).unwrap_or_else(|it| it);
            let [id, law, says] = ["id", "law", "says"].map(|it| text_of(line, it));
            let reason = text_of(&known, id);
            *counts.entry(verdict).or_insert(0) += 1;
            if verdict == "failed" {
                let why = if reason.is_empty() { status = 1; why } else { format!("known: {reason}") };
                told += &format!("{id}  {law}: {says}\n    {why}\n");
            } else if verdict == "skipped" {
                *skips.entry(why).or_insert(0) += 1;
            } else if !reason.is_empty() {
                told += &format!("{id}  passes, and is listed as a known deviation\n");
            }
        }
        if kind.is_empty() { refuse(&format!("{path}: must begin with a header, which names the kind of its vectors")) }
    }
    skips.iter().for_each(|(why, count)| told += &format!("    {count} skipped: {why}\n"));
    let total: usize = counts.values().sum();
    let played = total - counts.get("skipped").unwrap_or(&0);
    let share = 1000 * played / total.max(1);
    if played == 0 {
        told += &format!("nothing was played of {total} vectors");
        status = 3;
    } else {
        told += &format!("played {played} of {total} vectors ({}.{} %)", share / 10, share % 10);
    }
    counts.iter().for_each(|(verdict, count)| told += &format!(", {verdict} {count}"));
    println!("{told}");
    exit(status)
}
