// SPDX-License-Identifier: Apache-2.0
//! Routes, and the OpenAPI document about them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::handler::Handler;
use axum::routing::{self, MethodRouter};
use mint_api::{ErrorBody, Line};
use serde_json::{Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use crate::app::App;

/// How a route answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// One JSON document.
    Json,
    /// Lines of JSON: [`Line`].
    Lines,
    /// Switches to frames.
    Frames,
    /// A file's bytes.
    Bytes,
    /// Text in Prometheus' format.
    Text,
}

/// Schemas by their names.
type Schemas = BTreeMap<String, RefOr<Schema>>;

/// A route.
pub(crate) struct Route {
    /// `get` or `post`.
    pub method: &'static str,
    /// Path with `{parameters}`.
    pub path: &'static str,
    /// What it does.
    summary: &'static str,
    /// Name of the request's schema, if it takes one.
    request: Option<Cow<'static, str>>,
    /// Name of the answer's schema, or of the last line's, if it has one.
    reply: Option<Cow<'static, str>>,
    answer: Answer,
    /// The schemas that it names, and those that they name.
    schemas: Vec<(String, RefOr<Schema>)>,
    /// What serves it.
    pub handler: MethodRouter<Arc<App>>,
}

/// A route that is read.
pub(crate) fn get<T: 'static>(
    path: &'static str,
    summary: &'static str,
    handler: impl Handler<T, Arc<App>>,
) -> Route {
    Route::new("get", path, summary, routing::get(handler))
}

/// A route that changes something.
pub(crate) fn post<T: 'static>(
    path: &'static str,
    summary: &'static str,
    handler: impl Handler<T, Arc<App>>,
) -> Route {
    Route::new("post", path, summary, routing::post(handler))
}

impl Route {
    fn new(
        method: &'static str,
        path: &'static str,
        summary: &'static str,
        handler: MethodRouter<Arc<App>>,
    ) -> Self {
        let (request, reply, schemas) = (None, None, Vec::new());
        Self { method, path, summary, request, reply, answer: Answer::Json, schemas, handler }
    }

    fn knows<T: ToSchema>(&mut self) -> Cow<'static, str> {
        T::schemas(&mut self.schemas);
        self.schemas.push((T::name().into_owned(), T::schema()));
        T::name()
    }

    /// Its body is such a request.
    pub fn takes<T: ToSchema>(mut self) -> Self {
        self.request = Some(self.knows::<T>());
        self
    }

    /// It answers with such a document.
    pub fn gives<T: ToSchema>(mut self) -> Self {
        self.reply = Some(self.knows::<T>());
        self
    }

    /// It answers with lines; the last one holds such a result, if the route changes
    /// something, and each one is such a document, if it is read.
    pub fn lines<T: ToSchema>(self) -> Self {
        Self { answer: Answer::Lines, ..self.gives::<T>() }
    }

    /// It carries frames from then on.
    pub fn frames(self) -> Self {
        Self { answer: Answer::Frames, ..self }
    }

    /// It answers with a file.
    pub fn bytes(self) -> Self {
        Self { answer: Answer::Bytes, ..self }
    }

    /// It answers with text.
    pub fn text(self) -> Self {
        Self { answer: Answer::Text, ..self }
    }
}

/// The document about these routes.
pub(crate) fn document(routes: &[Route]) -> Value {
    let mut schemas = Schemas::from([
        (ErrorBody::name().into_owned(), ErrorBody::schema()),
        (Line::name().into_owned(), Line::schema()),
    ]);
    let mut more = Vec::new();
    ErrorBody::schemas(&mut more);
    Line::schemas(&mut more);
    schemas.extend(more);
    let mut paths = serde_json::Map::new();
    for route in routes {
        schemas.extend(route.schemas.iter().cloned());
        let mut operation = json!({
            "summary": route.summary,
            "responses": {
                "200": answer(route),
                "default": {
                    "description": "error",
                    "content": { "application/json": { "schema": reference("ErrorBody") } }
                }
            }
        });
        if route.answer == Answer::Frames {
            operation["responses"]["101"] =
                json!({ "description": "the connection carries frames from now on" });
        }
        if route.path.contains("{id}") {
            operation["parameters"] = json!([{
                "name": "id", "in": "path", "required": true,
                "description": "number of the operation",
                "schema": { "type": "integer", "minimum": 1 }
            }]);
        }
        if route.path.contains("{node}") {
            operation["parameters"] = json!([{
                "name": "node", "in": "path", "required": true,
                "description": "name, nodeN or id", "schema": { "type": "string" }
            }]);
        }
        if let Some(request) = &route.request {
            operation["requestBody"] = json!({
                "content": { "application/json": { "schema": reference(request) } }
            });
        }
        let entry = paths.entry(route.path).or_insert_with(|| json!({}));
        entry[route.method] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "mintd",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Nodes of one machine. Unix socket for users of a node, mutual TLS on mint0 for peers.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" }
        },
        "paths": paths,
        "components": { "schemas": schemas }
    })
}

fn answer(route: &Route) -> Value {
    let mut answer = json!({ "description": route.summary });
    let kind = match route.answer {
        Answer::Json => "application/json",
        Answer::Lines => "application/x-ndjson",
        Answer::Bytes => "application/octet-stream",
        Answer::Text => "text/plain; version=0.0.4",
        Answer::Frames => return answer,
    };
    if matches!(route.answer, Answer::Bytes | Answer::Text) {
        answer["content"] = json!({ kind: { "schema": { "type": "string" } } });
    }
    if let Some(reply) = &route.reply {
        answer["content"] = json!({ kind: { "schema": reference(reply) } });
        if route.answer == Answer::Lines && route.method == "post" {
            answer["description"] =
                json!(format!("{}: lines of Line; the last one holds the result", route.summary));
        }
    }
    answer
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::routes;
    use std::collections::BTreeSet;

    /// Every `$ref` in a document.
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    if let (true, Some(text)) = (key == "$ref", value.as_str()) {
                        found.insert(text.to_owned());
                    }
                    references(value, found);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document(&routes());
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() > 20);
        for reference in found {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }

    /// A refusal with all that it can have is what the document says.
    #[test]
    fn refusal_is_described() {
        let pages = mint_types::BlockPages::default();
        let refusal = mint_types::Refusal::new(mint_types::RefusalCode::MemoryBusy, "memory 7", "")
            .with_pages(pages);
        let document = document(&routes());
        let described = &document["components"]["schemas"]["Refusal"]["properties"];
        for field in serde_json::to_value(refusal).unwrap().as_object().unwrap().keys() {
            assert!(described[field].is_object(), "{field}");
        }
    }
}
