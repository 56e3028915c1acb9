// SPDX-License-Identifier: Apache-2.0
//! The interface as an OpenAPI document, from one table of routes: the server
//! checks at start that it serves exactly these.

use serde_json::{Value, json};
use utoipa::PartialSchema;

use crate::error::ErrorBody;
use crate::operations::{OperationList, OperationView, TakenFrom, UnreadableView};
use crate::types::*;

/// How a route answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
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

/// A route.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Method.
    pub method: &'static str,
    /// Path with `{parameters}`.
    pub path: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// Name of the request's schema; empty for none.
    pub request: &'static str,
    /// Name of the answer's schema; empty for none.
    pub reply: &'static str,
    /// How it answers.
    pub answer: Answer,
}

const fn route(
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    request: &'static str,
    reply: &'static str,
    answer: Answer,
) -> Route {
    Route { method, path, summary, request, reply, answer }
}

/// All routes. `/v1/local/…` are about the answering node itself.
pub const ROUTES: &[Route] = &[
    route("get", "/v1/hello", "Who answers", "", "Hello", Answer::Json),
    route("get", "/v1/openapi.json", "This document", "", "", Answer::Json),
    route("get", "/v1/config", "Effective settings of the daemon", "", "", Answer::Json),
    route("get", "/v1/nodes", "All nodes", "", "NodeList", Answer::Json),
    route("post", "/v1/nodes", "Make a node", "AddRequest", "NodeResult", Answer::Lines),
    route("get", "/v1/nodes/{node}", "One node", "", "NodeDetail", Answer::Json),
    route(
        "post",
        "/v1/nodes/{node}/start",
        "Start it",
        "StartRequest",
        "NodeResult",
        Answer::Lines,
    ),
    route(
        "post",
        "/v1/nodes/{node}/stop",
        "End it in an orderly way",
        "StopRequest",
        "NodeResult",
        Answer::Lines,
    ),
    route(
        "post",
        "/v1/nodes/{node}/restart",
        "Stop it and start it",
        "StartRequest",
        "NodeResult",
        Answer::Lines,
    ),
    route("post", "/v1/nodes/{node}/kill", "End it by force", "", "NodeResult", Answer::Lines),
    route(
        "post",
        "/v1/nodes/{node}/remove",
        "Free what it owns, and itself",
        "RemoveRequest",
        "NodeResult",
        Answer::Lines,
    ),
    route(
        "post",
        "/v1/nodes/{node}/resize",
        "Change what it owns",
        "ResizeRequest",
        "NodeResult",
        Answer::Lines,
    ),
    route("get", "/v1/nodes/{node}/console", "Its console; ?follow=true", "", "", Answer::Frames),
    route(
        "get",
        "/v1/nodes/{node}/vmcore",
        "Memory of a node that ended: an ELF core file",
        "",
        "",
        Answer::Bytes,
    ),
    route("get", "/v1/nodes/{node}/exec", "Run a command on it", "", "", Answer::Frames),
    route("get", "/v1/cpus", "Cores of the machine", "", "CpuList", Answer::Json),
    route("get", "/v1/memory", "Memory blocks of the machine", "", "MemoryList", Answer::Json),
    route("get", "/v1/devices", "PCI functions of the machine", "", "DeviceList", Answer::Json),
    route("get", "/v1/loads", "What running nodes use", "", "LoadList", Answer::Json),
    route("get", "/metrics", "Nodes and resources, for Prometheus", "", "", Answer::Text),
    route("get", "/v1/doctor", "Is the machine in order?", "", "DoctorReport", Answer::Json),
    route(
        "post",
        "/v1/repair",
        "Heal what the doctor finds half done",
        "",
        "Repaired",
        Answer::Json,
    ),
    route("get", "/v1/operations", "Operations of this daemon", "", "OperationList", Answer::Json),
    route("get", "/v1/operations/{id}", "One operation", "", "OperationView", Answer::Json),
    route("get", "/v1/operations/{id}/wait", "What it says, to its end", "", "Line", Answer::Lines),
    route(
        "post",
        "/v1/operations/{id}/cancel",
        "End it before its point of no return",
        "",
        "OperationView",
        Answer::Json,
    ),
    route("get", "/v1/events", "Events; ?follow=true&since=SEQ", "", "EventView", Answer::Lines),
    route(
        "post",
        "/v1/apply",
        "Bring described nodes up",
        "ApplyRequest",
        "ApplyResult",
        Answer::Lines,
    ),
    route(
        "post",
        "/v1/local/release",
        "A peer wants resources of this node",
        "ReleaseRequest",
        "Moved",
        Answer::Json,
    ),
    route(
        "post",
        "/v1/local/releasable",
        "Could this node release these resources?",
        "ReleasableRequest",
        "Releasable",
        Answer::Json,
    ),
    route(
        "post",
        "/v1/local/claim",
        "A peer gives this node resources",
        "ClaimRequest",
        "Moved",
        Answer::Json,
    ),
    route("get", "/v1/local/load", "What this node uses", "", "", Answer::Json),
    route("post", "/v1/machine/poweroff", "Switch the machine off", "", "", Answer::Json),
    route("post", "/v1/machine/reboot", "Reset the machine", "", "", Answer::Json),
    route("post", "/v1/local/poweroff", "This node ends in an orderly way", "", "", Answer::Json),
    route("get", "/v1/local/boot", "What this node was started with", "", "BootView", Answer::Json),
    route("get", "/v1/local/boot/kernel", "Kernel of its next start", "", "", Answer::Bytes),
    route("get", "/v1/local/boot/initrd", "Initrd of its next start", "", "", Answer::Bytes),
    route("post", "/v1/local/leave", "Node 0 ends alone", "", "", Answer::Json),
    route("post", "/v1/local/reboot", "The same, and starts again", "", "", Answer::Json),
    route(
        "post",
        "/v1/local/ordered",
        "A peer ends a node: it is not to be started again",
        "OrderedEnd",
        "",
        Answer::Json,
    ),
    route(
        "get",
        "/v1/local/introductions",
        "The nodes that this one knows, and itself",
        "",
        "Introductions",
        Answer::Json,
    ),
    route(
        "post",
        "/v1/local/introductions",
        "A peer tells whom it knows",
        "Introductions",
        "Introduced",
        Answer::Json,
    ),
    route(
        "get",
        "/v1/local/specs/{node}",
        "A description that this daemon has",
        "",
        "SpecReply",
        Answer::Json,
    ),
];

/// The document.
pub fn openapi() -> Value {
    let mut paths = serde_json::Map::new();
    for route in ROUTES {
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
        if !route.request.is_empty() {
            operation["requestBody"] = json!({
                "content": { "application/json": { "schema": reference(route.request) } }
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
        "components": { "schemas": schemas() }
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
    if !route.reply.is_empty() {
        answer["content"] = json!({ kind: { "schema": reference(route.reply) } });
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

fn schemas() -> Value {
    let mut all = serde_json::Map::new();
    macro_rules! add {
        ($($name:ident),* $(,)?) => {
            $(all.insert(
                stringify!($name).into(),
                serde_json::to_value($name::schema()).expect("schemas are plain data"),
            );)*
        };
    }
    use crate::error::ErrorCode;
    use mint_types::{
        BlockPages, Gift, HolderKind, OperationKind, OperationState, PageHolder, PageKind,
        PagesOfKind, Refusal, RefusalCode,
    };
    add!(
        AddRequest,
        Applied,
        ApplyRequest,
        ApplyResult,
        BlockPages,
        BootView,
        CheckView,
        ClaimRequest,
        CpuList,
        DeviceList,
        DeviceView,
        DoctorReport,
        ErrorBody,
        ErrorCode,
        EventView,
        Gift,
        Hello,
        HolderKind,
        Introduced,
        Introduction,
        Introductions,
        Line,
        LoadList,
        MemoryList,
        Moved,
        NodeDetail,
        NodeList,
        NodeLoad,
        NodeResources,
        NodeResult,
        NodeView,
        OperationKind,
        OperationList,
        OperationState,
        OperationView,
        TakenFrom,
        OrderedEnd,
        PageHolder,
        PageKind,
        PagesOfKind,
        Refusal,
        RefusalCode,
        Releasable,
        ReleasableRequest,
        ReleaseRequest,
        RemoveRequest,
        Repaired,
        ResizeRequest,
        ResourceView,
        SpecReply,
        StartRequest,
        StoppedAt,
        StopRequest,
        TimesView,
        UnreadableView,
        WaitFor,
    );
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let document = openapi();
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
        let document = openapi();
        let described = &document["components"]["schemas"]["Refusal"]["properties"];
        for field in serde_json::to_value(refusal).unwrap().as_object().unwrap().keys() {
            assert!(described[field].is_object(), "{field}");
        }
    }

    #[test]
    fn requests_with_unknown_fields_are_bad() {
        let bad = r#"{"timeout":3}"#;
        assert!(serde_json::from_str::<StopRequest>(bad).is_err());
        assert!(serde_json::from_str::<StopRequest>("{}").is_ok());
    }
}
