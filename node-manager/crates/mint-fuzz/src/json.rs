// SPDX-License-Identifier: Apache-2.0
//! Damage to JSON: values are replaced, taken away, doubled and renamed.

use serde_json::{Map, Value, json};

use crate::numbers::NUMBERS;

/// One of the seeds, changed in one to four places: the same for the same number.
pub(crate) fn damaged(seeds: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let all: Vec<Value> =
        seeds.iter().map(|seed| serde_json::from_slice(seed).expect("a seed is JSON")).collect();
    let mut value = all[random.usize(..all.len())].clone();
    for _ in 0..1usize << random.usize(..3) {
        let other = &all[random.usize(..all.len())];
        change(&mut value, other, &mut random);
    }
    serde_json::to_vec(&value).expect("JSON is written")
}

/// How many values there are, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(all) => all.iter().map(count).sum(),
        Value::Object(all) => all.values().map(count).sum(),
        _ => 0,
    }
}

/// The value of that number, counted from the top.
fn nth(value: &mut Value, mut number: usize) -> &mut Value {
    if number == 0 {
        return value;
    }
    number -= 1;
    let inner: Vec<&mut Value> = match value {
        Value::Array(all) => all.iter_mut().collect(),
        Value::Object(all) => all.values_mut().collect(),
        _ => unreachable!("only what has values inside is counted"),
    };
    for one in inner {
        let here = count(one);
        if number < here {
            return nth(one, number);
        }
        number -= here;
    }
    unreachable!("the number is one of those that were counted")
}

fn change(value: &mut Value, other: &Value, random: &mut fastrand::Rng) {
    let mut other = other.clone();
    let from = random.usize(..count(&other));
    let piece = nth(&mut other, from).clone();
    let at = random.usize(..count(value));
    let place = nth(value, at);
    match (random.u8(..8), &mut *place) {
        (0 | 1, Value::Object(fields)) if !fields.is_empty() => {
            let name = name(fields, random);
            let taken = fields.remove(&name).expect("it was just there");
            // under another name, or not at all
            if random.bool() {
                fields.insert(name + "x", taken);
            }
        }
        (2, Value::Object(fields)) => _ = fields.insert("later".into(), piece),
        (0 | 1, Value::Array(all)) if !all.is_empty() => {
            let at = random.usize(..all.len());
            all.remove(at);
        }
        (2, Value::Array(all)) => all.push(piece),
        (3, Value::String(text)) => text.push(random.char(..)),
        (3 | 4, place) => *place = json!(NUMBERS[random.usize(..NUMBERS.len())]),
        (5, place) => *place = Value::Null,
        (6, place) => *place = json!(random.bool()),
        (_, place) => *place = piece,
    }
}

fn name(fields: &Map<String, Value>, random: &mut fastrand::Rng) -> String {
    let at = random.usize(..fields.len());
    fields.keys().nth(at).expect("it has that many").clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_json_and_the_same_for_the_same_number() {
        let seeds = [br#"{"a": [1, {"b": "text"}], "c": null}"#.to_vec()];
        let all: std::collections::BTreeSet<Vec<u8>> =
            (0..1000).map(|seed| damaged(&seeds, seed)).collect();
        assert!(all.len() > 300, "{}", all.len());
        for bytes in &all {
            assert!(serde_json::from_slice::<Value>(bytes).is_ok());
        }
        assert_eq!(damaged(&seeds, 7), damaged(&seeds, 7));
    }
}
