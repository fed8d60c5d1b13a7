"""The page with the map: one document whose script asks the server that it came from, and nobody else."""

from __future__ import annotations

from socialx.report.page import digest, style

# The names of colours begin with a capital letter: in lower case they would look like flags of the command line.
# The classes are those of ColorBrewer's RdYlBu, which colour-blind readers can tell apart; slower is also larger.
OWN = """
:root{--S0:#d73027;--S1:#fc8d59;--S2:#fee090;--S3:#e0f3f8;--S4:#91bfdb;--S5:#4575b4}
.s0{fill:var(--S0)}.s1{fill:var(--S1)}.s2{fill:var(--S2)}.s3{fill:var(--S3)}.s4{fill:var(--S4)}.s5{fill:var(--S5)}
circle{stroke:var(--Ink);stroke-width:1.5;stroke-opacity:.75;vector-effect:non-scaling-stroke}
.none{fill:none;stroke:var(--Soft);stroke-dasharray:2 2}#map{max-height:70vh;margin:1rem 0;overflow:hidden}
label{display:block;font-weight:600}input[type=range]{width:100%;height:2.5rem;margin:0;accent-color:var(--C1)}
.ends{max-width:none;display:flex;justify-content:space-between}.legend{display:flex;
flex-wrap:wrap;gap:.4rem 1.25rem;padding:0;list-style:none;
font-size:.875rem}.legend svg{display:inline-block;width:1.1rem;height:1.1rem;margin-right:.4rem;
vertical-align:-.15rem}.scroll{max-height:32rem;overflow:auto;position:relative}thead th{position:sticky;top:0;
background:var(--Card)}:focus-visible{outline:3px solid var(--C1);outline-offset:2px}[hidden]{display:none}
form{display:flex;flex-wrap:wrap;gap:.75rem;align-items:end}form input,button{font:inherit;color:inherit;
padding:.45rem .75rem;background:var(--Code);border:1px solid var(--Soft);border-radius:6px}
@media(max-width:34rem){td:last-child,th:last-child{display:none}}
"""
CSS = style("page.css") + OWN
BODY = """<main><header><p class="note">socialx serve</p><h1 id="title">Traffic forecast</h1>
<p class="lead" id="said" aria-live="polite">The forecast is being loaded.</p></header>
<form id="ask" hidden><input type="text" autocomplete="username" value="socialx" hidden><label>Token<br>
<input type="password" id="token" autocomplete="current-password" required></label>
<button>Show the forecast</button></form>
<div id="shown" hidden><section aria-label="Map">
<label for="ahead">Time: <output id="time" for="ahead"></output></label>
<input type="range" id="ahead" min="0" max="0" step="1" value="0">
<p class="note ends"><span>now</span><span id="last"></span></p>
<svg id="map" role="img" aria-labelledby="name about"><title id="name"></title><desc id="about"></desc><g id="dots"></g>
</svg><p class="note" id="absent"></p><ul class="legend" id="legend"></ul></section>
<section aria-label="Table"><h2>All sensors, lowest forecast first</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Table of all sensors"><table><thead id="head"></thead>
<tbody id="rows"></tbody></table></div></section></div></main>
<noscript><p>This page needs JavaScript. The same numbers are at forecast/latest.</p></noscript>"""
SCRIPT = """"use strict";
const SVG = "http://www.w3.org/2000/svg", CLASSES = 6, DASH = "\\u2013", AGAIN_MS = 15000;
const $ = id => document.getElementById(id), asked = document.body.dataset;
let token = "", network = null, found = null, dots = [], scale = null;

const known = value => typeof value === "number";
const shown = value => known(value) ? value.toFixed(1) : DASH;
const least = values => values.reduce((one, other) => Math.min(one, other));
const most = values => -least(values.map(x => -x));
const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;

function made(name, text, attributes = {}, space = null) {
  const one = space ? document.createElementNS(space, name) : document.createElement(name);
  if (text !== null) one.textContent = text;
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  return one;
}

async function get(path) {
  const headers = token ? {Authorization: `Bearer ${token}`} : {};
  const answer = await fetch(path, {headers, cache: "no-store"});
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.detail), {status: answer.status});
  return content;
}

function classes(values) {
  const low = least(values), wide = most(values) - low || 1;
  const unit = 10 ** Math.floor(Math.log10(wide / CLASSES)), rounds = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 20];
  const fits = each => Math.ceil((low + wide) / each) - Math.floor(low / each) <= CLASSES;
  const step = rounds.map(each => each * unit).find(fits) || wide;
  return {first: Math.floor(low / step) * step, step};
}

const classOf = value => Math.max(0, Math.min(CLASSES - 1, Math.floor((value - scale.first) / scale.step)));

function place() {
  const there = network.sensors.map((each, column) => ({...each, column})).filter(each => known(each.latitude));
  $("map").toggleAttribute("hidden", !there.length);
  const lost = network.sensors.length - there.length;
  $("absent").textContent = !there.length ? "No sensor has a position, so there is no map. The table has all sensors."
    : lost ? `${lost} sensors have no position. They are in the table only.` : "";
  if (!there.length) return;
  const middle = mean(there.map(each => each.latitude)), shrink = Math.cos(middle * Math.PI / 180);
  const xs = there.map(each => each.longitude * shrink), ys = there.map(each => -each.latitude);
  const left = least(xs), top = least(ys), wide = most(xs) - left, high = most(ys) - top;
  const unit = 920 / Math.max(wide, high, 1e-6), size = Math.max(5, Math.min(14, 200 / Math.sqrt(there.length)));
  $("map").setAttribute("viewBox", `0 0 ${wide * unit + 80} ${high * unit + 80}`);
  dots = there.map((each, at) => {
    const spot = {cx: 40 + (xs[at] - left) * unit, cy: 40 + (ys[at] - top) * unit};
    const dot = made("circle", null, spot, SVG);
    dot.append(made("title", "", {}, SVG));
    return {dot, size, column: each.column};
  });
}

function legend() {
  const parts = [...Array(CLASSES).keys()].map(at => [`s${at}`, scale.first + at * scale.step]).map(([look, from]) =>
    [look, `${+from.toFixed(3)} to ${+(from + scale.step).toFixed(3)}`]);
  $("legend").replaceChildren(...[...parts, ["none", "no reading"]].map(([look, text], at) => {
    const key = made("svg", null, {viewBox: "0 0 20 20", "aria-hidden": "true"}, SVG);
    key.append(made("circle", null, {cx: 10, cy: 10, r: Math.max(5, 9 - at * 0.7), class: look}, SVG));
    const item = made("li", null);
    item.append(key, `${text}${look === "none" ? "" : ` ${network.unit}`}`);
    return item;
  }));
}

function draw() {
  const step = +$("ahead").value, minutes = step * network.step_minutes;
  const now = found.now[network.feature][0], values = step ? found.forecast[network.feature][0][step - 1] : now;
  const clock = (step ? found.times[0][step - 1] : found.issued_at[0]).slice(0, 16);
  const name = step ? `in ${minutes} minutes, ${clock}` : `now, ${clock}`;
  $("time").textContent = name;
  $("ahead").setAttribute("aria-valuetext", name);
  const speed = each => known(values[each.column]) ? values[each.column] : Infinity;
  $("dots").replaceChildren(...dots.sort((one, other) => speed(other) - speed(one)).map(each => each.dot));
  for (const {dot, size, column} of dots) {
    const value = values[column], look = known(value) ? classOf(value) : null;
    dot.setAttribute("class", look === null ? "none" : `s${look}`);
    dot.setAttribute("r", look === null ? size * 0.6 : size * (1.15 - 0.08 * look));
    const text = known(value) ? `${value.toFixed(1)} ${network.unit}` : "no reading";
    dot.firstChild.textContent = `${network.sensors[column].id}: ${text}`;
  }
  const there = values.filter(known);
  const all = there.length ? `mean ${shown(mean(there))}, lowest ${shown(least(there))} ${network.unit}` : "no reading";
  $("name").textContent = `${network.feature} of ${network.sensors.length} sensors ${name}`;
  $("about").textContent = `A map of the sensors, coloured by value: ${all}. The table below has all values.`;
  $("said").textContent = `${there.length} of ${network.sensors.length} sensors ${name}: ${all}.`;
}

function tabulate() {
  const now = found.now[network.feature][0], ahead = found.forecast[network.feature][0], last = ahead.length;
  const steps = [...new Set([Math.ceil(last / 4), Math.ceil(last / 2), last])];
  const names = ["now", ...steps.map(step => `+${step * network.step_minutes} min`)];
  const columns = [now, ...steps.map(step => ahead[step - 1])];
  const head = made("tr", null);
  head.append(made("th", "sensor", {scope: "col"}), ...names.map(name => made("th", name, {scope: "col", class: "n"})),
    made("th", "history", {scope: "col"}));
  $("head").replaceChildren(head);
  const lowest = now.map((_, sensor) => least(ahead.map(values => values[sensor])));
  $("rows").replaceChildren(...[...now.keys()].sort((one, other) => lowest[one] - lowest[other]).map(sensor => {
    const row = made("tr", null);
    row.append(made("th", network.sensors[sensor].id, {scope: "row"}),
      ...columns.map(values => made("td", shown(values[sensor]), {class: "n"})), made("td", found.history[0][sensor]));
    return row;
  }));
}

async function load() {
  try {
    network = network || await get("sensors");
    $("title").textContent = `${network.dataset}: ${network.feature.replaceAll("_", " ")} in ${network.unit}`;
    if (asked.latest !== "yes") {
      $("said").textContent = "This server was started without a data file, so it has no forecast to show. "
        + "It answers requests to forecast.";
      return;
    }
    const next = await get("forecast/latest"), values = Object.values(next.forecast)[0][0];
    if (found && found.issued_at[0] === next.issued_at[0] && JSON.stringify(found) === JSON.stringify(next)) return;
    const first = found === null;
    found = next;
    scale = classes([...next.now[network.feature][0], ...values.flat()].filter(known));
    $("ahead").max = values.length;
    $("last").textContent = `+${values.length * network.step_minutes} min`;
    $("ask").hidden = true;
    $("shown").hidden = false;
    if (first) place();
    legend();
    tabulate();
    draw();
  } catch (error) {
    if (error.status === 401) {
      $("ask").hidden = false;
      $("said").textContent = "The server did not take this token.";
    } else $("said").textContent = `The server did not answer (${error.message}).`
      + (found ? ` The numbers are those of ${found.issued_at[0]}.` : "");
  }
}

$("ahead").addEventListener("input", draw);
$("ask").addEventListener("submit", event => { event.preventDefault(); token = $("token").value; load(); });
if (asked.token === "yes") {
  $("ask").hidden = false;
  $("said").textContent = "This server asks for its token.";
} else load();
if (asked.follow === "yes") setInterval(() => { if (network && !document.hidden) load(); }, AGAIN_MS);
"""


def page(token: bool, latest: bool, follow: bool) -> str:
    """Return the document: whether it asks for a token, has a forecast to show, and looks for newer ones."""
    said = {"token": token, "latest": latest, "follow": follow}
    marks = " ".join(f'data-{name}="{"yes" if value else "no"}"' for name, value in said.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>socialx: traffic forecast</title>'
        f'<link rel="icon" href="data:,"><style>{CSS}</style></head>\n<body {marks}>{BODY}'
        f"<script>{SCRIPT}</script></body>\n</html>\n"
    )


def policy() -> str:
    """Return the content security policy of the page: its own style and script by their hashes, and nothing else."""
    return (
        f"default-src 'none'; style-src '{digest(CSS)}'; script-src '{digest(SCRIPT)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
