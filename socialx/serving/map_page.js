"use strict";
// What a map needs.
const byId = name => document.getElementById(name);
const known = value => typeof value === "number";
const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;

// A new last child of an element, of HTML or of SVG as its parent is.
function element(parent, name, attributes = {}, text = "") {
  const made = document.createElementNS(name === "svg" ? "http://www.w3.org/2000/svg" : parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return parent.appendChild(made);
}

// The dot that is nearest to a pointer, or undefined where none is within reach, in units of the map.
function nearest(map, event, dots, reach) {
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
  const away = dot => (dot.getAttribute("cx") - point.x) ** 2 + (dot.getAttribute("cy") - point.y) ** 2;
  const found = dots.reduce((best, dot) => best && away(best) <= away(dot) ? best : dot, undefined);
  return found && away(found) < reach ** 2 ? found : undefined;
}

// A map that wheel, drag and two fingers move and enlarge.  moved: is told the share of its width that is seen.
function zoomable(map, wide, high, moved) {
  const pointers = new Map();
  let seen = [0, 0, 1];
  const set = (x, y, share) => {
    share = Math.min(1, Math.max(0.02, share));
    seen = [Math.min(wide * (1 - share), Math.max(0, x)), Math.min(high * (1 - share), Math.max(0, y)), share];
    map.setAttribute("viewBox", `${seen[0]} ${seen[1]} ${wide * share} ${high * share}`);
    map.style.touchAction = share < 1 ? "none" : "pan-y";
    moved(...seen);
  };
  const at = (x, y) => new DOMPoint(x, y).matrixTransform(map.getScreenCTM().inverse());
  const zoom = (factor, point) => {
    const share = Math.min(1, Math.max(0.02, seen[2] * factor)), kept = share / seen[2];
    set(point.x - (point.x - seen[0]) * kept, point.y - (point.y - seen[1]) * kept, share);
  };
  map.addEventListener("wheel", event => {
    event.preventDefault();
    zoom(Math.exp(Math.sign(event.deltaY) * 0.2), at(event.clientX, event.clientY));
  }, {passive: false});
  map.addEventListener("pointerdown", event => {
    pointers.set(event.pointerId, event);
    map.setPointerCapture(event.pointerId);
  });
  map.addEventListener("pointermove", event => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const other = [...pointers.values()].find(each => each.pointerId !== event.pointerId);
    const [from, to] = [at(before.clientX, before.clientY), at(event.clientX, event.clientY)];
    if (other) {
      const fixed = at(other.clientX, other.clientY), apart = point => Math.hypot(point.x - fixed.x, point.y - fixed.y);
      if (apart(to) > 0) zoom(apart(from) / apart(to), fixed);
    } else set(seen[0] + from.x - to.x, seen[1] + from.y - to.y, seen[2]);
    pointers.set(event.pointerId, event);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    map.addEventListener(name, event => pointers.delete(event.pointerId));
  }
  set(0, 0, 1);
  return factor => zoom(factor, {x: seen[0] + wide * seen[2] / 2, y: seen[1] + high * seen[2] / 2});
}

// The level of a colour scale from 0 to count - 1, or "n" for no value.
function level(value, scale, count) {
  if (!known(value) || !scale) return "n";
  const above = scale.invert ? scale.high - value : value - scale.low;
  return Math.max(0, Math.min(count - 1, Math.floor(count * above / (scale.high - scale.low))));
}

const CLASSES = 6, LABELLED = 40, DASH = "\u2013", AGAIN_MS = 15000;
const asked = document.body.dataset;
let token = "", network = null, found = null, dots = [], scale = null, seen = [0, 0, 1];

const shown = value => known(value) ? value.toFixed(1) : DASH;
const least = values => values.reduce((one, other) => Math.min(one, other));
const most = values => -least(values.map(x => -x));

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
  const first = Math.floor(low / step) * step;
  return {low: first, high: first + CLASSES * step, step};
}

// What the colour of a sensor stands for: the share of its free-flow speed, of other quantities the value.
const shares = () => network.sensors.some(each => known(each.free_flow));
function rated(column, value) {
  const free = network.sensors[column].free_flow;
  return known(value) && (known(free) || !shares()) ? value / (shares() ? free : 1) : null;
}
function said(column, value) {
  const part = shares() && known(rated(column, value)) ? `, ${Math.round(100 * rated(column, value))} % of free flow` : "";
  return `${network.sensors[column].id}: ${known(value) ? `${value.toFixed(1)} ${network.unit}${part}` : "no reading"}`;
}

// After a move of the map: dots and ids keep their size on the screen, and few sensors show their ids.
function resize(...view) {
  seen = view;
  const [left, top, share] = seen, [wide, high] = [map.wide * share, map.high * share];
  const inside = ({x, y}) => x >= left && x <= left + wide && y >= top && y <= top + high;
  const few = dots.filter(inside).length <= LABELLED;
  for (const each of dots) {
    each.dot.setAttribute("r", each.radius * share);
    each.name.toggleAttribute("hidden", !few || !inside(each));
    each.name.setAttribute("font-size", 20 * share);
    each.name.setAttribute("x", each.x + 18 * share);
  }
}
const map = {wide: 1, high: 1};

function place() {
  const there = network.sensors.map((each, column) => ({...each, column})).filter(each => known(each.latitude));
  byId("map").toggleAttribute("hidden", !there.length);
  const lost = network.sensors.length - there.length;
  byId("absent").textContent = !there.length ? "No sensor has a position, so there is no map. The table has all sensors."
    : lost ? `${lost} sensors have no position. They are in the table only.` : "";
  if (!there.length) return;
  const middle = mean(there.map(each => each.latitude)), shrink = Math.cos(middle * Math.PI / 180);
  const xs = there.map(each => each.longitude * shrink), ys = there.map(each => -each.latitude);
  const left = least(xs), top = least(ys), wide = most(xs) - left, high = most(ys) - top;
  const unit = 920 / Math.max(wide, high, 1e-6), size = Math.max(5, Math.min(14, 200 / Math.sqrt(there.length)));
  dots = there.map((each, at) => {
    const x = 40 + (xs[at] - left) * unit, y = 40 + (ys[at] - top) * unit;
    const dot = element(byId("dots"), "circle", {cx: x, cy: y}), name = element(byId("ids"), "text", {y}, each.id);
    element(dot, "title");
    return {dot, name, x, y, size, radius: size, column: each.column};
  });
  Object.assign(map, {wide: wide * unit + 80, high: high * unit + 80});
  const zoom = zoomable(byId("map"), map.wide, map.high, resize);
  byId("larger").addEventListener("click", () => zoom(0.6));
  byId("smaller").addEventListener("click", () => zoom(1 / 0.6));
  for (const name of ["pointermove", "click"]) {
    byId("map").addEventListener(name, event => {
      const found = nearest(byId("map"), event, dots.map(each => each.dot), 40 * seen[2]);
      byId("over").textContent = found ? found.firstChild.textContent : "";
    });
  }
}

function legend() {
  const edge = at => +((shares() ? 100 : 1) * (scale.low + at * scale.step)).toFixed(3);
  const unit = shares() ? "%" : network.unit;
  const texts = [...Array(CLASSES).keys()].map(at => `${edge(at)} to ${edge(at + 1)} ${unit}`);
  if (shares()) [texts[0], texts[CLASSES - 1]] = [`under ${edge(1)} %`, `${edge(CLASSES - 1)} % and more`];
  byId("scale").textContent = shares() ? "Colour: share of the sensor's free-flow speed." : "";
  byId("legend").replaceChildren();
  [...texts, "no reading"].forEach((text, at) => {
    const item = element(byId("legend"), "li"), key = element(item, "svg", {viewBox: "0 0 20 20", "aria-hidden": "true"});
    element(key, "circle", {cx: 10, cy: 10, r: Math.max(5, 9 - at * 0.7), class: at < CLASSES ? `s${at}` : "sn"});
    item.append(text);
  });
}

function draw() {
  const step = +byId("ahead").value, minutes = step * network.step_minutes;
  const now = found.now[network.feature][0], values = step ? found.forecast[network.feature][0][step - 1] : now;
  const clock = (step ? found.times[0][step - 1] : found.origin[0]).slice(0, 16);
  const name = step ? `in ${minutes} minutes, ${clock}` : `now, ${clock}`;
  byId("time").textContent = name;
  byId("ahead").setAttribute("aria-valuetext", name);
  const speed = each => rated(each.column, values[each.column]) ?? Infinity;
  byId("dots").replaceChildren(...dots.sort((one, other) => speed(other) - speed(one)).map(each => each.dot));
  for (const each of dots) {
    const value = values[each.column], look = level(rated(each.column, value), scale, CLASSES);
    each.dot.setAttribute("class", `s${look}`);
    each.radius = look === "n" ? each.size * 0.6 : each.size * (1.15 - 0.08 * look);
    each.dot.firstChild.textContent = said(each.column, value);
  }
  resize(...seen);
  const there = values.filter(known);
  const all = there.length ? `mean ${shown(mean(there))}, lowest ${shown(least(there))} ${network.unit}` : "no reading";
  byId("name").textContent = `${network.feature} of ${network.sensors.length} sensors ${name}`;
  byId("about").textContent = `A map of the sensors, coloured by value: ${all}. The table below has all values.`;
  byId("said").textContent = `${there.length} of ${network.sensors.length} sensors ${name}: ${all}.`;
}

function tabulate() {
  const now = found.now[network.feature][0], ahead = found.forecast[network.feature][0], last = ahead.length;
  const steps = [...new Set([Math.ceil(last / 4), Math.ceil(last / 2), last])];
  const names = ["now", ...steps.map(step => `+${step * network.step_minutes} min`)];
  const columns = [now, ...steps.map(step => ahead[step - 1])];
  byId("head").replaceChildren();
  const head = element(byId("head"), "tr");
  element(head, "th", {scope: "col"}, "sensor");
  for (const name of names) element(head, "th", {scope: "col", class: "n"}, name);
  element(head, "th", {scope: "col"}, "input");
  const lowest = now.map((_, sensor) => least(ahead.map(values => values[sensor])));
  byId("rows").replaceChildren();
  for (const sensor of [...now.keys()].sort((one, other) => lowest[one] - lowest[other])) {
    const row = element(byId("rows"), "tr");
    element(row, "th", {scope: "row"}, network.sensors[sensor].id);
    for (const values of columns) element(row, "td", {class: "n"}, shown(values[sensor]));
    element(row, "td", {}, found.input_status[0][sensor]);
  }
}

async function load() {
  try {
    network = network || await get("sensors");
    byId("title").textContent = `${network.dataset}: ${network.feature.replaceAll("_", " ")} in ${network.unit}`;
    if (asked.latest !== "yes") {
      byId("said").textContent = "The file of this server has no history to forecast from. "
        + "It answers requests to forecast.";
      return;
    }
    const next = await get("forecast/latest"), values = Object.values(next.forecast)[0][0];
    if (found && found.origin[0] === next.origin[0] && JSON.stringify(found) === JSON.stringify(next)) return;
    const first = found === null;
    found = next;
    scale = shares() ? {low: 0.4, high: 1, step: 0.1}
      : classes([...next.now[network.feature][0], ...values.flat()].filter(known));
    byId("ahead").max = values.length;
    byId("last").textContent = `+${values.length * network.step_minutes} min`;
    byId("ask").hidden = true;
    byId("shown").hidden = false;
    if (first) place();
    legend();
    tabulate();
    draw();
  } catch (error) {
    if (error.status === 401) {
      byId("ask").hidden = false;
      byId("said").textContent = "The server did not take this token.";
    } else byId("said").textContent = `The server did not answer (${error.message}).`
      + (found ? ` The numbers are those of ${found.origin[0]}.` : "");
  }
}

byId("ahead").addEventListener("input", draw);
byId("ask").addEventListener("submit", event => { event.preventDefault(); token = byId("token").value; load(); });
if (asked.token === "yes") {
  byId("ask").hidden = false;
  byId("said").textContent = "This server asks for its token.";
} else load();
if (asked.follow === "yes") setInterval(() => { if (network && !document.hidden) load(); }, AGAIN_MS);
