#include "coordinator/http/live_page.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <array>
#include <string>

namespace lockstep::coordinator {
namespace {

// Colours that are told apart by who sees no red, green or blue; what differs by colour differs by
// text or hatching as well.
constexpr std::string_view kHead = R"page(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Lockstep</title>
<style>
:root { --back: #fbfbfa; --card: #fff; --text: #1c2126; --soft: #5b6570; --line: #dcdfe3;
        --own: #0072b2; --moved: #e69f00; --wait: #d55e00; --exchange: #7a8794; --good: #00775a; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14181c; --card: #1d2328; --text: #e8ebee; --soft: #9ba6b1; --line: #343c44;
          --own: #56b4e9; --moved: #f0b93a; --wait: #ff8a3d; --exchange: #8f9ba7; --good: #35c79b; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem 1.25rem 2rem; max-width: 1200px; background: var(--back);
       color: var(--text); font: 14px/1.45 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.25rem; margin: 0; display: inline-block; }
h2 { font-size: .95rem; margin: 0 0 .5rem; font-weight: 600; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
        padding: .8rem 1rem; margin-top: .8rem; overflow-x: auto; }
.figures { display: flex; flex-wrap: wrap; gap: .4rem 1.8rem; margin-top: .7rem; }
.figures div { min-width: 5rem; }
.figures b { display: block; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
.figures span, .legend, footer, .soft { color: var(--soft); font-size: .85rem; }
#phase { margin-left: .6rem; padding: .1rem .5rem; border: 1px solid var(--line);
         border-radius: 1rem; font-size: .85rem; }
#waiting { border-left: 5px solid var(--good); }
#waiting.waits { border-left-color: var(--wait); }
#lost { display: none; border-left: 5px solid var(--wait); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: .8rem; }
th, td { padding: .18rem .7rem .18rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.number, th.number { text-align: right; }
td.long { white-space: normal; min-width: 18rem; }
tr.slow td.score { color: var(--wait); font-weight: 700; }
tr.away { color: var(--soft); }
progress { width: 5rem; height: .7rem; vertical-align: middle; accent-color: var(--own); }
svg { display: block; width: 100%; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.legend i { display: inline-block; width: 1rem; height: .7rem; margin: 0 .3rem 0 .9rem;
            vertical-align: -1px; }
code { font-size: .85rem; }
form { display: flex; flex-wrap: wrap; gap: .4rem .6rem; align-items: center; margin: .45rem 0; }
form label { min-width: 6rem; }
fieldset { border: 0; margin: 0; padding: 0; min-width: 0; }
fieldset:disabled { opacity: .55; }
input, select, button { font: inherit; color: inherit; background: var(--back); padding: .2rem .5rem;
                        border: 1px solid var(--line); border-radius: 5px; }
input[type=text], input[type=password] { width: 21rem; max-width: 100%; }
button { cursor: pointer; background: var(--card); border-color: var(--soft); }
:focus-visible { outline: 2px solid var(--own); outline-offset: 1px; }
#answer { display: block; min-height: 1.45em; margin-top: .3rem; border-left: 5px solid transparent;
          padding-left: .5rem; }
#answer.done { border-left-color: var(--good); }
#answer.refused { border-left-color: var(--wait); }
[hidden] { display: none !important; }
a { color: var(--own); }
</style>
</head>
<body>
<header><h1>Lockstep</h1><span id="phase">asking</span></header>
<div class="card" id="lost">The coordinator does not answer any more: it has ended, or is not reached.
What is below is the last that it said.</div>
<section class="figures" id="figures"></section>
<section class="card" id="waiting"></section>
<section class="card"><h2>Rounds</h2><svg id="rounds" height="130" role="img"
  aria-label="time of each of the last rounds"></svg>
<div class="legend"><i style="background:var(--own)"></i>until half of the contributors were ready
<i id="wait-key"></i>waiting for the others, up to the commit
<i style="background:var(--exchange)"></i>exchange, until all had applied it</div></section>
<section class="card"><h2>Who computed what</h2><svg id="gantt" role="img"
  aria-label="units of the last rounds, by worker"></svg>
<div class="legend"><i style="background:var(--own)"></i>units, as planned
<i id="moved-key"></i>units that were another worker's
<i style="border-left:2px solid var(--text);width:.2rem"></i>ready
<i style="border-left:2px dashed var(--soft);width:.2rem"></i>commit</div></section>
<section class="card"><h2>Workers</h2><table><thead id="workers-head"></thead><tbody id="workers"></tbody></table>
<div class="soft" id="more-workers"></div></section>
<section class="card"><h2>Last rounds</h2><table><thead id="last-head"></thead><tbody id="last"></tbody></table></section>
<section class="card" id="control"><h2>Change the job</h2>
<p class="soft" id="access">Asking what a change has to prove.</p>
<form id="secret-form" hidden>
<label for="secret">Secret</label>
<input type="password" id="secret" autocomplete="off" aria-describedby="access">
<label for="secret-file">or its file</label><input type="file" id="secret-file" aria-describedby="access">
<button>Use this secret</button></form>
<form id="forget-form" hidden><button>Forget the secret</button></form>
<fieldset id="changes" disabled>
<form id="policy-form"><label for="policy">Policy</label>
<input type="text" id="policy" list="policies" maxlength="100" required placeholder="backup+none"
  autocomplete="off" spellcheck="false">
<datalist id="policies"><option value="full"><option value="backup"><option value="deadline">
<option value="partial"><option value="flexrr"><option value="balance"><option value="auto">
<option value="backup+flexrr"></datalist>
<button>Change the policy</button></form>
<form id="slowdown-form"><label for="slowdown">Slow-down</label>
<input type="text" id="slowdown" required placeholder="worker=2,factor=4,for=10s" autocomplete="off"
  spellcheck="false">
<button>Slow down</button><button type="button" id="no-slowdown">End all slow-downs</button></form>
<form id="drain-form"><label for="drain">Worker</label><select id="drain" required></select>
<button>Ask it to leave</button></form>
</fieldset>
<output id="answer" role="status"></output></section>
<footer><p>From a terminal:
<code>tools/ctl --http <span id="here"></span> policy NAME | slowdown SPEC | drain WORKER</code></p>
<p>The same for programs: <a href="/status">/status</a>, <a href="/rounds">/rounds</a>,
<a href="/metrics">/metrics</a></p></footer>
<script>)page";

constexpr std::string_view kScript = R"page(
"use strict";
const byId = (id) => document.getElementById(id);
const svgNamespace = "http://www.w3.org/2000/svg";
const kept = 120, drawn = 8, mostRows = 48;
const rounds = new Map();
let answered = 0, job = null;

function element(parent, tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  parent.appendChild(made);
  return made;
}
function shape(parent, tag, attributes, title) {
  const made = document.createElementNS(svgNamespace, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (title) {
    const tip = document.createElementNS(svgNamespace, "title");
    tip.textContent = title;
    made.appendChild(tip);
  }
  parent.appendChild(made);
  return made;
}
function label(parent, x, y, text, anchor) {
  shape(parent, "text", {x: x, y: y, "text-anchor": anchor || "start"}).textContent = text;
}
// Stripes, so that the state does not depend on colour alone.
function hatch(svg, name, colour) {
  const definitions = shape(svg, "defs", {});
  const pattern = shape(definitions, "pattern", {id: name, width: 6, height: 6,
    patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"});
  shape(pattern, "rect", {width: 6, height: 6, fill: colour, "fill-opacity": .35});
  shape(pattern, "rect", {width: 3, height: 6, fill: colour});
  return "url(#" + name + ")";
}
for (const [id, colour] of [["wait-key", "--wait"], ["moved-key", "--moved"]]) {
  byId(id).style.background = "repeating-linear-gradient(45deg, var(" + colour + ") 0 3px, transparent 3px 6px)";
}
function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value >= 60) return (value / 60).toFixed(1) + " min";
  if (value >= 1) return value.toFixed(2) + " s";
  return (value * 1000).toFixed(value >= 0.1 ? 0 : 1) + " ms";
}
function count(value) {
  return value >= 1e6 ? (value / 1e6).toFixed(2) + " M" : value >= 1e4 ? (value / 1e3).toFixed(1) + " k"
    : String(Math.round(value));
}
function bytes(value) {
  const unit = value >= 2 ** 30 ? ["GiB", 2 ** 30] : ["MiB", 2 ** 20];
  return (value / unit[1]).toFixed(value >= 10 * unit[1] ? 0 : 1) + " " + unit[0];
}
function median(values) {
  const sorted = values.filter((v) => v > 0).sort((a, b) => a - b);
  return sorted.length ? sorted[(sorted.length - 1) >> 1] : 0;
}

// Whether what was computed together was another worker's: it has moved as a whole or not at all,
// unit by unit, and perhaps several times.
function movedIn(round) {
  const hops = new Map();
  for (const m of round.moved) hops.set(m.range[0], {from: (hops.get(m.range[0]) || m).from, to: m.to});
  return (run) => {
    const hop = hops.get(run.range[0]);
    return hop !== undefined && hop.from !== run.worker && hop.to === run.worker;
  };
}

function drawFigures(status) {
  byId("phase").textContent = status.phase;
  const live = status.members.filter((m) => m.state === "live").length;
  const figures = [["epoch", status.epoch], ["round", status.round],
    ["workers", live + " of " + status.workers], ["samples/s", count(status.samples_per_second)],
    ["loss", status.loss === null ? "-" : status.loss.toPrecision(4)],
    ["test accuracy", status.test_accuracy === null ? "-" : (100 * status.test_accuracy).toFixed(2) + " %"],
    ["in the last commit", status.contributors + (status.excluded ? ", " + status.excluded + " not" : "")],
    ["policy", status.policy], ["transport", status.transport || "-"], ["time", seconds(status.seconds)]];
  const into = byId("figures");
  into.replaceChildren();
  for (const [name, value] of figures) {
    const box = element(into, "div");
    element(box, "b", value);
    element(box, "span", name);
  }
  const waiting = byId("waiting");
  waiting.replaceChildren();
  waiting.classList.toggle("waits", status.waiting_for !== "");
  const text = status.waiting_for || "nobody is waited for";
  element(waiting, "b", text[0].toUpperCase() + text.slice(1));
  for (const warning of status.warnings) element(waiting, "div", "Warning: " + warning);
  if (status.reason) element(waiting, "div", "the last round closed: " + status.reason, {class: "soft"});
  if (status.emulated) {
    element(waiting, "div", "Times are emulated: " + (status.slowdowns.join("; ") || "units take at least " +
      seconds(status.unit_time_seconds)), {class: "soft"});
  }
}

function lastRounds(n) {
  return [...rounds.values()].sort((a, b) => a.round - b.round).slice(-n);
}

function drawRounds() {
  const svg = byId("rounds"), width = svg.clientWidth || 1000, height = 130, base = height - 16;
  svg.setAttribute("viewBox", "0 0 " + width + " " + height);
  svg.replaceChildren();
  const waitFill = hatch(svg, "waits", "var(--wait)");
  const shown = lastRounds(kept);
  if (!shown.length) return label(svg, 4, 20, "no round is closed yet");
  const parts = shown.map((r) => {
    const ready = Object.values(r.times.ready).sort((a, b) => a - b);
    const half = Math.min(Math.max(ready[ready.length >> 1] || r.times.commit, r.times.start), r.times.commit);
    return {own: half - r.times.start, wait: r.times.commit - half,
            exchange: Math.max((r.times.applied || r.times.commit) - r.times.commit, 0)};
  });
  const most = Math.max(...parts.map((p) => p.own + p.wait + p.exchange), 1e-6);
  const left = 52, step = (width - left) / kept, bar = Math.max(step - 1.5, 1);
  for (const share of [0.5, 1]) {
    const y = base - share * (base - 8);
    shape(svg, "line", {x1: left, x2: width, y1: y, y2: y, stroke: "var(--line)"});
    label(svg, left - 6, y + 4, seconds(most * share), "end");
  }
  shown.forEach((r, i) => {
    const x = left + i * step, p = parts[i];
    const tip = "round " + r.round + ": " + seconds(p.own + p.wait) + " to the commit, " +
      seconds(p.exchange) + " exchange; " + r.reason;
    let y = base;
    for (const [value, fill] of [[p.own, "var(--own)"], [p.wait, waitFill], [p.exchange, "var(--exchange)"]]) {
      const tall = value / most * (base - 8);
      y -= tall;
      shape(svg, "rect", {x: x, y: y, width: bar, height: Math.max(tall, 0), fill: fill}, tip);
    }
  });
  label(svg, left, height - 3, "round " + shown[0].round);
  label(svg, left + shown.length * step, height - 3, shown.length > 12 ? String(shown[shown.length - 1].round) : "", "end");
}

function drawUnits(status) {
  const svg = byId("gantt"), width = svg.clientWidth || 1000, shown = lastRounds(drawn);
  svg.replaceChildren();
  if (!shown.length) {
    svg.setAttribute("height", 30);
    return label(svg, 4, 20, "no round is closed yet");
  }
  const there = new Set(shown.flatMap((r) => r.units.map((u) => u.worker)));
  const rows = status.members.map((m) => m.worker).filter((w) => there.has(w)).slice(0, mostRows);
  const row = new Map(rows.map((w, i) => [w, i]));
  const tall = rows.length > 16 ? 12 : 20, left = 80, top = 16, height = top + rows.length * tall + 16;
  svg.setAttribute("height", height);
  svg.setAttribute("viewBox", "0 0 " + width + " " + height);
  const movedFill = hatch(svg, "moves", "var(--moved)");
  const from = Math.min(...shown.map((r) => Math.min(r.times.start, ...r.units.map((u) => u.start))));
  const to = Math.max(...shown.map((r) => Math.max(r.times.commit, ...r.units.map((u) => u.end))));
  const at = (time) => left + (time - from) / Math.max(to - from, 1e-9) * (width - left - 4);
  rows.forEach((worker, i) => {
    const y = top + i * tall;
    shape(svg, "line", {x1: left, x2: width, y1: y + tall, y2: y + tall, stroke: "var(--line)"});
    label(svg, left - 8, y + tall - tall / 4, "worker " + worker, "end");
  });
  let before = -100;
  for (const r of shown) {
    const moved = movedIn(r);
    for (const u of r.units) {
      if (!row.has(u.worker)) continue;
      const other = moved(u);
      shape(svg, "rect", {x: at(u.start), y: top + row.get(u.worker) * tall + 2, height: tall - 4,
        width: Math.max(at(u.end) - at(u.start) - 0.6, 0.6), fill: other ? movedFill : "var(--own)"},
        "worker " + u.worker + ", round " + r.round + ": samples " + u.range[0] + " to " + u.range[1] + ", " +
        (u.units || 1) + " of a run of " + (u.run || 1) + " units, " + seconds(u.end - u.start) +
        (other ? "; it was another worker's" : ""));
    }
    for (const [worker, time] of Object.entries(r.times.ready)) {
      if (!row.has(Number(worker))) continue;
      const y = top + row.get(Number(worker)) * tall;
      shape(svg, "line", {x1: at(time), x2: at(time), y1: y + 1, y2: y + tall - 1, stroke: "var(--text)",
        "stroke-width": 2}, "worker " + worker + " is ready with round " + r.round);
    }
    const x = at(r.times.commit);
    shape(svg, "line", {x1: x, x2: x, y1: top, y2: height - 14, stroke: "var(--soft)", "stroke-dasharray": "4 3"},
      "commit of round " + r.round);
    if (x - before > 60) {
      label(svg, x, 11, "round " + r.round, "end");
      before = x;
    }
  }
  label(svg, left, height - 3, seconds(to - from) + " in all" +
    (there.size > rows.length ? "; the first " + rows.length + " of " + there.size + " workers" : ""));
}

function drawWorkers(status) {
  const usual = median(status.members.filter((m) => m.state === "live").map((m) => m.unit_seconds));
  const head = byId("workers-head");
  const reading = status.members.some(m => m.input_wait_seconds != null) ? "yes" : "no";
  if (head.dataset.reading !== reading) {
    head.dataset.reading = reading;
    head.replaceChildren();
    const line = element(head, "tr");
    for (const [name, kind] of [["worker", ""], ["state", ""], ["units of this round", ""], ["time of a unit", "number"],
        ["of the median", "number"], ["rounds in", "number"], ["not in", "number"], ["held others up", "number"],
        ...(reading === "yes" ? [["data wait", "number"]] : []), ["processes", "number"], ["memory", "number"], ["host", ""], ["device", ""]]) {
      element(line, "th", name, {class: kind});
    }
  }
  const body = byId("workers");
  body.replaceChildren();
  const rows = [...status.members].sort((a, b) => status.members.length > mostRows
    ? b.held_up_seconds - a.held_up_seconds || a.worker - b.worker : a.worker - b.worker).slice(0, mostRows);
  for (const m of rows) {
    const score = usual && m.unit_seconds ? m.unit_seconds / usual : 0;
    const line = element(body, "tr", null, {class: m.state !== "live" ? "away" : score >= 1.5 ? "slow" : ""});
    element(line, "td", m.worker);
    const notes = [m.owner ? "owner" : "", m.draining ? "drains" : "", m.away ? "away: " + m.away : "",
      m.silent_seconds > 2 && m.state !== "lost" ? "silent for " + seconds(m.silent_seconds) : ""].filter(Boolean);
    element(line, "td", m.state + (notes.length ? " (" + notes.join(", ") + ")" : ""));
    const units = element(line, "td");
    element(units, "progress", null, {max: Math.max(m.units_given, 1), value: m.units_done});
    element(units, "span", " " + m.units_done + " of " + m.units_given);
    element(line, "td", seconds(m.unit_seconds), {class: "number"});
    element(line, "td", score ? score.toFixed(2) + " x" + (score >= 1.5 ? " slow" : "") : "", {class: "number score"});
    element(line, "td", m.rounds_contributed, {class: "number"});
    element(line, "td", m.rounds_excluded, {class: "number"});
    element(line, "td", seconds(m.held_up_seconds), {class: "number"});
    if (reading === "yes") element(line, "td", m.input_wait_seconds != null && m.run_seconds > 0
      ? (100 * m.input_wait_seconds / m.run_seconds).toFixed(0) + " %" : "", {class: "number"});
    element(line, "td", m.incarnation, {class: "number"});
    element(line, "td", m.resident_bytes ? bytes(m.resident_bytes) : "", {class: "number"});
    element(line, "td", m.host);
    element(line, "td", m.device);
  }
  byId("more-workers").textContent = rows.length < status.members.length
    ? "the " + rows.length + " of " + status.members.length + " that held others up most" : "";
}

function drawLast() {
  const head = byId("last-head");
  if (!head.firstChild) {
    const line = element(head, "tr");
    for (const [name, kind] of [["round", "number"], ["to the commit", "number"], ["samples", "number"], ["loss", "number"],
        ["in", "number"], ["left out", ""], ["moved", "number"], ["attempts", "number"], ["why it closed", ""]]) {
      element(line, "th", name, {class: kind});
    }
  }
  const body = byId("last");
  body.replaceChildren();
  for (const r of lastRounds(12).reverse()) {
    const line = element(body, "tr");
    for (const value of [r.round, seconds(r.times.commit - r.times.start), r.samples, r.loss === null ? "" : r.loss.toPrecision(4),
        new Set(r.contributors.map((c) => c.worker)).size]) {
      element(line, "td", value, {class: "number"});
    }
    element(line, "td", r.excluded.map((w) => "worker " + w).join(", "));
    const moved = r.moved.reduce((sum, m) => sum + m.range[1] - m.range[0], 0);
    element(line, "td", moved ? moved + " samples" : "", {class: "number"});
    element(line, "td", r.attempts.length, {class: "number"});
    element(line, "td", r.reason, {class: "long"});
  }
}

const patience = 10000;  // ms; a coordinator that is stopped takes requests and answers none
async function ask(path) {
  const answer = await fetch(path, {cache: "no-store", signal: AbortSignal.timeout(patience)});
  if (!answer.ok) throw new Error(path + ": " + answer.status);
  return answer.json();
}

// --- changes. What proves the secret is in `keys` alone, as keys that the browser does not give out
// again; nothing is stored, and the secret itself is sent nowhere.
let access = null;  // what a change needs: null: not known; "nothing", "secret", "elsewhere"
let keys = [];      // that the secret may mean; one once it has been right
let asked = Promise.resolve();  // ends with the last change that was asked for: one at a time
const encoder = new TextEncoder();

// As HttpProof has it (docs/reference/protocol.md).
async function derived(bytes, purpose) {
  const from = await crypto.subtle.importKey("raw", bytes, "HKDF", false, ["deriveBits"]);
  return crypto.subtle.deriveBits({name: "HKDF", hash: "SHA-256", salt: encoder.encode("lockstep job secret v1"),
    info: encoder.encode(purpose)}, from, 256);
}
async function keyOf(secret) {
  const key = await derived(await derived(secret, "root"), "http");
  return crypto.subtle.importKey("raw", key, {name: "HMAC", hash: "SHA-256"}, false, ["sign"]);
}
async function proof(key, job, nonce, method, target, body) {
  const text = ["lockstep-http v2", job, nonce, method, target, body].join("\n");
  const mac = new Uint8Array(await crypto.subtle.sign("HMAC", key, encoder.encode(text)));
  return [...mac].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function drawAccess() {
  const has = keys.length > 0;
  const here = location.host;
  byId("access").textContent = {
    nothing: "This job has no secret: everybody on its machine can change it.",
    secret: has ? "The secret is in this page alone, until it is closed or loaded again. It proves changes and is not sent."
      : "Changes prove the job's secret (the file of --secret-file, or the one that secret.path in the run directory names). " +
        "It stays in this page, until that is closed or loaded again, and is not sent.",
    elsewhere: "Changes have to prove the job's secret, and a page over plain HTTP is not to be trusted with it: who is on the way " +
      "could change the page. Use tools/ctl as below, or look at this page by way of ssh -L 8080:" + here + " as http://127.0.0.1:8080/.",
  }[access] || "Asking what a change has to prove.";
  byId("secret-form").hidden = access !== "secret" || has;
  byId("forget-form").hidden = access !== "secret" || !has;
  byId("changes").hidden = access === "elsewhere";
  byId("changes").disabled = !(access === "nothing" || has);
}
// A coordinator that wants no proof has no nonces either.
async function askAccess() {
  const answer = await fetch("/nonce", {cache: "no-store", signal: AbortSignal.timeout(patience)});
  if (!answer.ok && answer.status !== 404) throw new Error("/nonce: " + answer.status);
  access = !answer.ok ? "nothing" : window.isSecureContext && crypto.subtle ? "secret" : "elsewhere";
  if (access !== "secret") keys = [];
  drawAccess();
}
function say(text, kind) {
  const line = byId("answer");
  line.className = kind;
  line.textContent = new Date().toLocaleTimeString() + "  " + text;
}
async function post(target, body, key) {
  const headers = {"Content-Type": "text/plain"};
  if (key) {
    // Nothing is signed but what a nonce looks like, and for no job but the one that is shown.
    const offered = await ask("/nonce");
    if (offered.job_id !== job) throw new Error("another job is here by now");
    if (!/^[0-9a-f]{64}$/.test(offered.nonce)) throw new Error("that is no nonce");
    headers["Lockstep-Nonce"] = offered.nonce;
    headers["Lockstep-Proof"] = await proof(key, job, offered.nonce, "POST", target, body);
  }
  const answer = await fetch(target, {method: "POST", body: body, headers: headers, cache: "no-store",
    signal: AbortSignal.timeout(patience)});
  const said = await answer.json();
  return {status: answer.status, text: answer.ok ? said.message : said.error};
}
async function changeNow(target, body) {
  if (access === "secret" && !keys.length) return say("the secret is wanted first", "refused");
  try {
    let said = null;
    for (const key of access === "secret" ? keys : [null]) {
      said = await post(target, body, key);
      if (said.status === 401) continue;
      if (key) keys = [key];
      break;
    }
    say(said.text, said.status === 200 ? "done" : "refused");
    if (said.status === 401) {
      keys = [];
      await askAccess();
    }
  } catch (error) {
    say("no answer: " + error.message, "refused");
  }
  drawAccess();
}
function change(target, body) {
  asked = asked.then(() => changeNow(target, body));
}
function onSubmit(form, act) {
  byId(form).addEventListener("submit", (event) => {
    event.preventDefault();
    act();
  });
}
onSubmit("policy-form", () => change("/policy", byId("policy").value.trim()));
onSubmit("slowdown-form", () => change("/slowdown", byId("slowdown").value.trim()));
byId("no-slowdown").addEventListener("click", () => change("/slowdown", "none"));
onSubmit("drain-form", () => {
  const worker = byId("drain").value;
  if (confirm("Ask worker " + worker + " to leave the job?")) change("/drain", worker);
});
onSubmit("secret-form", async () => {
  const file = byId("secret-file").files[0], typed = byId("secret").value;
  const candidates = file ? [new Uint8Array(await file.arrayBuffer())]
    // A file's last line break counts, and what is pasted mostly comes without it.
    : [typed, typed + "\n", typed + "\r\n"].map((text) => encoder.encode(text));
  byId("secret-form").reset();
  const fit = candidates.filter((bytes) => bytes.length >= 16 && bytes.length <= 65536);
  if (!fit.length) return say("a secret has 16 to 65536 bytes", "refused");
  keys = await Promise.all(fit.map(keyOf));
  drawAccess();
  say("the next change will tell whether it is the job's secret", "");
});
onSubmit("forget-form", () => {
  keys = [];
  drawAccess();
});
function drawDrain(status) {
  const list = byId("drain"), chosen = list.value;
  const there = status.members.filter((m) => m.state !== "lost" && !m.draining).map((m) => String(m.worker));
  if (there.join() === [...list.options].map((option) => option.value).join()) return;
  list.replaceChildren();
  for (const worker of there) element(list, "option", worker);
  if (there.includes(chosen)) list.value = chosen;
}
async function look() {
  try {
    const status = await ask("/status");
    // Another job has taken the address, or this one was resumed: what is shown was another's.
    if (status.job_id !== job) {
      rounds.clear();
      access = null;
    }
    if (access === null) await askAccess();
    job = status.job_id;
    const lines = await ask("/rounds?after=" + Math.max(-1, ...rounds.keys()));
    for (const line of lines) rounds.set(line.round, line);
    for (const old of [...rounds.keys()].sort((a, b) => b - a).slice(kept)) rounds.delete(old);
    byId("lost").style.display = "none";
    drawFigures(status);
    drawRounds();
    drawUnits(status);
    drawWorkers(status);
    drawLast();
    drawDrain(status);
    document.title = "Lockstep: round " + status.round;
    document.body.dataset.looks = ++answered;  // for who tests it
  } catch (error) {
    if (answered) byId("lost").style.display = "block";
    byId("phase").textContent = answered ? "gone" : "no answer";
  }
  setTimeout(look, document.hidden ? 5000 : 1000);
}
byId("here").textContent = location.host;
look();
)page";

constexpr std::string_view kTail = R"page(</script>
</body>
</html>
)page";

// As a security policy names a script.
std::string Base64Sha256(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::array<unsigned char, 4 * ((SHA256_DIGEST_LENGTH + 2) / 3) + 1> base64{};
  const int size = EVP_EncodeBlock(base64.data(), digest.data(), SHA256_DIGEST_LENGTH);
  return {reinterpret_cast<const char*>(base64.data()), static_cast<std::size_t>(size)};
}

}  // namespace

std::string_view LivePage() {
  static const std::string page = std::string(kHead).append(kScript).append(kTail);
  return page;
}

// Its own style and this one script, and questions to where it came from; nothing else, and in no
// frame. The page may hold what proves the secret: no other script runs in it.
std::string_view LivePageSecurityPolicy() {
  static const std::string policy =
      "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + Base64Sha256(kScript) +
      "'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
  return policy;
}

}  // namespace lockstep::coordinator
