// SPDX-License-Identifier: Apache-2.0
//! Reads JSON of another version: fields that a type does not know are left out, where
//! it would refuse them. Users' requests are read strictly, as a field that is not known
//! is a mistake there; a newer peer says more than we know, and means it well.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, Unexpected,
    VariantAccess, Visitor,
};
use serde_json::{Error, Value};

/// A value out of JSON text, unknown fields left out at any depth.
///
/// # Errors
/// When it is no JSON, or what the type does know is missing or of another kind.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, Error> {
    from_value(serde_json::from_slice(text)?)
}

/// The same, of a value that was read already.
///
/// # Errors
/// See [`from_slice`].
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    T::deserialize(Tolerant(value))
}

struct Tolerant(Value);

impl<'de> IntoDeserializer<'de, Error> for Tolerant {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Tolerant {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(fields) => visitor.visit_map(MapDeserializer::new(
                fields.into_iter().map(|(name, value)| (name, Self(value))),
            )),
            Value::Array(all) => visitor.visit_seq(SeqDeserializer::new(all.into_iter().map(Self))),
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(mut fields) => {
                fields.retain(|name, _| known.contains(&name.as_str()));
                Self(Value::Object(fields)).deserialize_any(visitor)
            }
            other => Self(other).deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            some => visitor.visit_some(Self(some)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(fields) if fields.len() == 1 => {
                let (name, content) = fields.into_iter().next().expect("there is one");
                visitor.visit_enum(Variant(name, content))
            }
            other => other.deserialize_enum(name, variants, visitor),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// A variant with content: `{"name": content}`.
struct Variant(String, Value);

impl<'de> EnumAccess<'de> for Variant {
    type Error = Error;
    type Variant = Tolerant;
    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Tolerant), Error> {
        let name = seed.deserialize(Value::String(self.0))?;
        Ok((name, Tolerant(self.1)))
    }
}

impl<'de> VariantAccess<'de> for Tolerant {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.0 {
            Value::Null => Ok(()),
            _ => Err(serde::de::Error::invalid_type(Unexpected::NewtypeVariant, &"unit variant")),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_struct("", known, visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AddRequest, Line, ResizeRequest, SpecReply};
    use serde_json::json;

    #[test]
    fn fields_of_a_newer_peer_are_left_out_at_any_depth() {
        let newer = json!({
            "spec": {"name": "web", "cpus": "2-3", "memory": ["1G@numa1"], "colour": "red"},
            "wait": "running", "dry_run": true, "wait_s": null, "later": {"a": [1, {"b": 2}]}
        });
        assert!(serde_json::from_value::<AddRequest>(newer.clone()).is_err(), "strict");
        let known = json!({
            "spec": {"name": "web", "cpus": "2-3", "memory": ["1G@numa1"]},
            "wait": "running", "dry_run": true, "wait_s": null
        });
        let strict: AddRequest = serde_json::from_value(known).unwrap();
        assert_eq!(from_value::<AddRequest>(newer).unwrap(), strict);
        let reply = br#"{"spec": {"name": "web", "cpus": "2", "colour": "red"}, "more": 1}"#;
        assert!(serde_json::from_slice::<SpecReply>(reply).is_err());
        let reply: SpecReply = from_slice(reply).unwrap();
        assert_eq!(reply.spec.unwrap().name.as_str(), "web");
    }

    #[test]
    fn what_is_known_is_read_as_strictly_as_ever() {
        for bad in [
            json!({"spec": {"name": "Web"}}),
            json!({"spec": {"name": "web", "cpus": 2}}),
            json!({}),
            json!({"spec": {"name": "web"}, "wait": "for ever"}),
        ] {
            assert!(from_value::<AddRequest>(bad.clone()).is_err(), "{bad}");
        }
        assert!(from_value::<ResizeRequest>(json!([])).is_err());
    }

    #[test]
    fn lines_are_read_whole() {
        let result = json!({"result": {"a": [1, 2, {"b": null}]}});
        let line: Line = from_value(result.clone()).unwrap();
        assert_eq!(serde_json::to_value(line).unwrap(), result);
        let error = json!({"error": {"code": "failed", "message": "no", "later": 1}});
        let Line::Error(body) = from_value(error).unwrap() else { panic!("an error") };
        assert_eq!(body.message, "no");
    }
}
