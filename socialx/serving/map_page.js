"use strict";
const CLASSES = 6, LABELLED = 40, ROWS = 300, REACH = 20, BELOW_MAP = 190, AGAIN_MS = 15000, DASH = "\u2013";
const FONT = "12px system-ui, sans-serif", EQUATOR_KM = 40075.017, TILE = 256, DEEPEST = 19;
const asked = document.body.dataset;
// network, latest: answers of the server.  curve: that of the chosen sensor.  scale: of the colours.
let token = "", network = null, latest = null, curve = null, chosen = null, scale = null, dots = [];
// lowest: the lowest forecast of each sensor.  rows: of the table by sensor.  order: of the rows.
let lowest = [], rows = new Map(), order = {key: "lowest", sign: 1};
const collator = new Intl.Collator("en", {numeric: true});

const byId = name => document.getElementById(name);
const isNumber = value => typeof value === "number";
const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;
const least = values => values.reduce((one, other) => Math.min(one, other));
const most = values => values.reduce((one, other) => Math.max(one, other));
const limited = (value, low, high) => Math.max(low, Math.min(high, value));
const shown = value => isNumber(value) ? value.toFixed(1) : DASH;

// A new last child of an element, of HTML or of SVG as its parent is.
function element(parent, name, attributes = {}, text = "") {
  const made = document.createElementNS(name === "svg" ? "http://www.w3.org/2000/svg" : parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return parent.appendChild(made);
}

async function get(path) {
  const headers = token ? {Authorization: `Bearer ${token}`} : {};
  const answer = await fetch(path, {headers, cache: "no-store"});
  const content = await answer.json();
  if (!answer.ok && path !== "ready") throw Object.assign(new Error(content.detail), {status: answer.status});
  return content;
}

// --- values and colours ---------------------------------------------------------------------------------------------

const step = () => +byId("ahead").value;
const ahead = () => latest.forecast[network.feature][0];
const valuesAt = at => at ? ahead()[at - 1] : latest.last_observed[network.feature][0];
const moment = at => at ? `+${at * network.step_minutes} min` : "last data";
const clock = at => (at ? latest.times[0][at - 1] : latest.origin[0]).slice(0, 16);

// What the colour of a sensor stands for: the share of its free-flow speed, of other quantities the value.
const shares = () => network.sensors.some(sensor => isNumber(sensor.free_flow));
function rated(column, value) {
  const free = network.sensors[column].free_flow;
  return isNumber(value) && (isNumber(free) || !shares()) ? value / (shares() ? free : 1) : null;
}
const named = ({id, road}) => road ? `${id}, ${road}` : id;
function said(column, value) {
  const share = shares() && isNumber(value) ? `, ${Math.round(100 * rated(column, value))} % of free-flow speed` : "";
  return `${named(network.sensors[column])}: ${isNumber(value) ? `${value.toFixed(1)} ${network.unit}${share}` : "no observation"}`;
}

const below = () => `below ${latest.below} ${network.unit}`;
function ring() {
  const alerts = new Set(latest.alerts);
  for (const dot of dots) dot.circle.classList.toggle("alert", alerts.has(dot.id));
}

// A round step that covers a span in at most so many parts.
function roundStep(low, high, parts) {
  const wide = high - low || 1, unit = 10 ** Math.floor(Math.log10(wide / parts));
  const fits = size => Math.ceil(high / size) - Math.floor(low / size) <= parts;
  return [1, 2, 2.5, 5, 10, 20, 50].map(size => size * unit).find(fits) || wide;
}

function classes(values) {
  const low = least(values), size = roundStep(low, most(values), CLASSES), first = Math.floor(low / size) * size;
  return {low: first, high: first + CLASSES * size, step: size};
}

// The class of a value from 0 to CLASSES - 1, or "n" for no value.
function level(value) {
  if (!isNumber(value)) return "n";
  return limited(Math.floor(CLASSES * (value - scale.low) / (scale.high - scale.low)), 0, CLASSES - 1);
}

function keyed(list, key, text) {
  const item = element(list, "li"), sample = element(item, "svg", {viewBox: "0 0 20 20", "aria-hidden": "true"});
  element(sample, ...key);
  item.append(text);
}

function legend() {
  const edge = at => +((shares() ? 100 : 1) * (scale.low + at * scale.step)).toFixed(3);
  const unit = shares() ? "%" : network.unit;
  const texts = [...Array(CLASSES).keys()].map(at => `${edge(at)} to ${edge(at + 1)} ${unit}`);
  if (shares()) [texts[0], texts[CLASSES - 1]] = [`under ${edge(1)} %`, `${edge(CLASSES - 1)} % and more`];
  byId("scale").textContent = shares()
    ? "Colour: share of the sensor's free-flow speed, which 5 % of its observations exceed." : "";
  byId("legend").replaceChildren();
  [...texts, "no observation"].forEach((text, at) => {
    const r = Math.max(5, 9 - at * 0.7);
    keyed(byId("legend"), ["circle", {cx: 10, cy: 10, r, class: at < CLASSES ? `s${at}` : "sn"}], text);
  });
  if (latest.alerts) keyed(byId("legend"), ["circle", {cx: 10, cy: 10, r: 7, class: "alert"}], `likely ${below()} ahead`);
}

// --- the map: Web Mercator, in which the world is a square of side 1 -----------------------------------------------

// x, y: the centre in the square.  scale: pixels of its side.  fit: that at which all sensors are seen.  corners: of the
// box, across and down, where the scale and the north arrow stand.  signs: their boxes in pixels of the map.
const view = {x: 0, y: 0, scale: 1, fit: 1, wide: 1, high: 1, box: [0, 0, 0, 0], corners: {}, signs: []};
const mercator = (latitude, longitude) => [
  longitude / 360 + 0.5,
  0.5 - Math.log(Math.tan(Math.PI / 4 + latitude * Math.PI / 360)) / (2 * Math.PI),
];
const onScreen = (x, y) => [view.wide / 2 + (x - view.x) * view.scale, view.high / 2 + (y - view.y) * view.scale];
const inView = ([x, y]) => x >= 0 && y >= 0 && x <= view.wide && y <= view.high;

function place() {
  const located = network.sensors.map((sensor, column) => ({...sensor, column})).filter(sensor => isNumber(sensor.latitude));
  byId("map").toggleAttribute("hidden", !located.length);
  const lost = network.sensors.length - located.length;
  byId("absent").textContent = !located.length ? "No sensor has a position, so there is no map. The table has all sensors."
    : lost ? `${lost} sensors have no position. They are in the table only.` : "";
  if (!located.length) return;
  const size = limited(100 / Math.sqrt(located.length), 3.5, 9);
  for (const look of ["n", ...[...Array(CLASSES).keys()].reverse()]) element(byId("dots"), "g", {class: `s${look}`});
  dots = located.map(({id, column, latitude, longitude}) => {
    const [x, y] = mercator(latitude, longitude);
    return {id, column, x, y, size, radius: size, circle: element(byId("dots"), "circle", {"data-sensor": id})};
  });
  const xs = dots.map(dot => dot.x), ys = dots.map(dot => dot.y);
  view.box = [least(xs), least(ys), most(xs), most(ys)];
  if (asked.tiles) byId("credit").textContent = asked.tiles.split(" ").slice(1).join(" ");
  listen(byId("map"));
  fit();
  new ResizeObserver(fit).observe(byId("map").parentElement);
}

// The box of the map is as wide as its column, and as high as the network then is.
function fit() {
  const [left, top, right, bottom] = view.box, margin = 28, whole = view.scale <= view.fit;
  const wide = Math.max(right - left, 1e-6), high = Math.max(bottom - top, 1e-6);
  if (byId("map").clientWidth < 2 * margin + 1) return;  // it is not laid out
  view.wide = byId("map").clientWidth;
  const room = innerHeight - scrollY - byId("map").getBoundingClientRect().top - BELOW_MAP;
  view.high = limited((view.wide - 2 * margin) * high / wide + 2 * margin, 200, Math.max(200, room));
  byId("map").style.height = `${view.high}px`;
  byId("map").setAttribute("viewBox", `0 0 ${view.wide} ${view.high}`);
  view.fit = Math.min((view.wide - 2 * margin) / wide, (view.high - 2 * margin) / high, TILE * 2 ** 16);
  look((left + right) / 2, (top + bottom) / 2, whole ? view.fit : view.scale);
}

function look(x, y, size) {
  const [left, top, right, bottom] = view.box;
  view.scale = limited(size, view.fit, Math.max(view.fit, TILE * 2 ** DEEPEST));
  Object.assign(view, {x: limited(x, left, right), y: limited(y, top, bottom)});
  byId("map").style.touchAction = view.scale > view.fit ? "none" : "pan-y";
  for (const dot of dots) {
    dot.at = onScreen(dot.x, dot.y);
    dot.circle.setAttribute("cx", dot.at[0].toFixed(1));
    dot.circle.setAttribute("cy", dot.at[1].toFixed(1));
  }
  ruler();
  label();
  streets();
}

// The point under the pointer, in pixels of the map, keeps its place.
function zoom(factor, [x, y] = [view.wide / 2, view.high / 2]) {
  const kept = 1 / view.scale - 1 / limited(view.scale * factor, view.fit, TILE * 2 ** DEEPEST);
  look(view.x + (x - view.wide / 2) * kept, view.y + (y - view.high / 2) * kept, view.scale * factor);
}

// Wheel, drag and two fingers; a click chooses the nearest sensor.
function listen(map) {
  const pointers = new Map();
  const at = event => {
    const box = map.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const away = (one, other) => Math.hypot(one[0] - other[0], one[1] - other[1]);
  const nearest = point => {
    const dot = dots.reduce((best, next) => away(next.at, point) < away(best.at, point) ? next : best);
    return away(dot.at, point) <= REACH ? dot : null;
  };
  map.addEventListener("wheel", event => {
    event.preventDefault();
    zoom(Math.exp(-Math.sign(event.deltaY) * 0.2), at(event));
  }, {passive: false});
  map.addEventListener("pointerdown", event => {
    pointers.set(event.pointerId, at(event));
    map.setPointerCapture(event.pointerId);
  });
  map.addEventListener("pointermove", event => {
    const before = pointers.get(event.pointerId), after = at(event);
    const dot = nearest(after);
    byId("over").textContent = dot ? said(dot.column, valuesAt(step())[dot.column]) : "";
    if (!before) return;
    const other = [...pointers].find(([id]) => id !== event.pointerId);
    if (other) zoom(limited(away(after, other[1]) / Math.max(1, away(before, other[1])), 0.5, 2), other[1]);
    else look(view.x - (after[0] - before[0]) / view.scale, view.y - (after[1] - before[1]) / view.scale, view.scale);
    pointers.set(event.pointerId, after);
  });
  for (const name of ["pointerup", "pointercancel"]) map.addEventListener(name, event => pointers.delete(event.pointerId));
  map.addEventListener("click", event => {
    const dot = nearest(at(event));
    if (dot) choose(dot.column);
  });
  byId("larger").addEventListener("click", () => zoom(1.7));
  byId("smaller").addEventListener("click", () => zoom(1 / 1.7));
}

// Ids beside the dots, the slowest first, where none covers another one, a dot, the scale or the north arrow; of many
// sensors only the chosen one.
function label() {
  const pen = document.createElement("canvas").getContext("2d"), high = 14;
  pen.font = FONT;
  const near = dots.filter(dot => inView(dot.at));
  const covered = near.map(({at: [x, y], radius}) => [x - radius, y - radius, x + radius, y + radius]);
  covered.push(...view.signs);
  const free = box => box[0] >= 0 && box[1] >= 0 && box[2] <= view.wide && box[3] <= view.high
    && !covered.some(other => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]);
  byId("ids").replaceChildren();
  const slowest = near.sort((one, other) => other.radius - one.radius);
  const named = near.length <= LABELLED ? slowest : near.filter(dot => dot.column === chosen);
  for (const {id, at: [x, y], radius} of named) {
    const wide = pen.measureText(id).width + 2, gap = radius + 3;
    const corners = [[x + gap, y - 7], [x - gap - wide, y - 7], [x - wide / 2, y - gap - high], [x - wide / 2, y + gap]];
    const corner = corners.find(([left, top]) => free([left, top, left + wide, top + high]));
    if (!corner) continue;
    covered.push([corner[0], corner[1], corner[0] + wide, corner[1] + high]);
    element(byId("ids"), "text", {x: corner[0] + 1, y: corner[1] + 11}, id);
  }
}

// The tiles that the box shows; those that are there stay.
function streets() {
  if (!asked.tiles) return;
  const deep = limited(Math.round(Math.log2(view.scale / TILE)), 0, DEEPEST), count = 2 ** deep, size = view.scale / count;
  const [left, top] = onScreen(0, 0), old = new Map([...byId("streets").children].map(tile => [tile.dataset.key, tile]));
  const upTo = (offset, length) => Math.min(count - 1, Math.floor((length - offset) / size));
  for (let x = Math.max(0, Math.floor(-left / size)); x <= upTo(left, view.wide); x++) {
    for (let y = Math.max(0, Math.floor(-top / size)); y <= upTo(top, view.high); y++) {
      const key = `${deep}/${x}/${y}`, parts = {z: deep, x, y};
      const href = asked.tiles.split(" ")[0].replace(/\{([xyz])\}/g, (_, name) => parts[name]);
      const tile = old.get(key) || element(byId("streets"), "image", {href, "data-key": key});
      old.delete(key);
      const box = {x: left + x * size, y: top + y * size, width: size + 0.5, height: size + 0.5};
      for (const [name, value] of Object.entries(box)) tile.setAttribute(name, value);
    }
  }
  for (const tile of old.values()) tile.remove();
}

// A bar of a round length, and where north is, in corners without a dot; they stay there while the map moves.
function ruler() {
  const middle = Math.PI - 2 * Math.PI * view.y, km = EQUATOR_KM / Math.cosh(middle) / view.scale;  // of a pixel
  const unit = 10 ** Math.floor(Math.log10(120 * km)), length = [5, 2, 1].find(size => size * unit <= 120 * km) * unit;
  const inside = ([left, top, right, bottom]) => ({at: [x, y], radius}) =>
    x + radius > left && x - radius < right && y + radius > top && y - radius < bottom;
  const box = ([right, low], wide, high) => {
    const [x, y] = [right ? view.wide - wide : 0, low ? view.high - high : 0];
    return [x, y, x + wide, y + high];
  };
  const sizes = {scale: [length / km + 20, 32], north: [32, 46]};
  if (view.scale <= view.fit) {
    const covers = (name, corner) => dots.filter(inside(box(corner, ...sizes[name]))).length;
    const emptiest = (name, corners) => corners.toSorted((one, other) => covers(name, one) - covers(name, other))[0];
    const scale = emptiest("scale", [[0, 1], [1, 1], [0, 0], [1, 0]]);
    const others = [[1, 0], [0, 0], [1, 1], [0, 1]].filter(corner => `${corner}` !== `${scale}`);
    view.corners = {scale, north: emptiest("north", others)};
  }
  view.signs = Object.entries(view.corners).map(([name, corner]) => box(corner, ...sizes[name]));
  const [[left, , right, bottom], [west, top]] = view.signs, north = west + 16;
  byId("ruler").replaceChildren();
  element(byId("ruler"), "path", {d: `M${left + 10} ${bottom - 16}V${bottom - 10}H${right - 10}V${bottom - 16}`});
  const text = length < 1 ? `${Math.round(1000 * length)} m` : `${length} km`;
  element(byId("ruler"), "text", {x: left + 14, y: bottom - 15}, text);
  element(byId("ruler"), "path", {d: `M${north} ${top + 40}v-18m-5 6l5 -7l5 7`});
  element(byId("ruler"), "text", {x: north - 4, y: top + 16}, "N");
}

// --- the curve of a sensor ------------------------------------------------------------------------------------------

async function choose(column, scroll = true) {
  mark(chosen, false);
  chosen = column;
  mark(chosen, true);
  if (dots.length) label();
  const id = network.sensors[column].id, answer = await get(`curve?sensor=${encodeURIComponent(id)}`).catch(error => error);
  if (chosen !== column) return;
  curve = answer instanceof Error ? null : answer;
  byId("chosen").textContent = `Sensor ${named(network.sensors[column])}`;
  drawCurve();
  if (!curve) byId("value").textContent = `The server has no curve (${answer.message}).`;
  if (scroll) byId("chosen").scrollIntoView({block: "nearest"});
}

function mark(column, marked) {
  dots.find(dot => dot.column === column)?.circle.classList.toggle("chosen", marked);
  rows.get(column)?.classList.toggle("chosen", marked);
}

// The lines of the curve, each with its values at the times of the curve, and the bands with their lower and upper ends.
function lines() {
  const {latest: last, earlier, observed, usual, times} = curve, count = ahead().length, before = times.length - count;
  const series = (answer, name, start) =>
    answer[name] && times.map((_, at) => answer[name][network.feature][0][at - start]?.[0] ?? null);
  const level = last.interval ? ` with ${+(100 * last.interval).toFixed(1)} % interval` : "";
  const drawn = [{name: "forecast", values: series(last, "forecast", before), text: `forecast${level}`}], bands = [];
  const band = (name, answer, start) => {
    if (level) bands.push({name, low: series(answer, "lower", start), high: series(answer, "upper", start)});
  };
  band("band", last, before);
  if (earlier) {
    const text = `forecast of ${earlier.origin[0].slice(11, 16)}`;
    drawn.push({name: "earlier", values: series(earlier, "forecast", before - count), text});
    band("earlier band", earlier, before - count);
  }
  drawn.push({name: "read", values: observed, text: "observed"}, {name: "usual", values: usual, text: "climatology (mean at that time of the week)"});
  return {drawn, bands, before};
}

function drawCurve() {
  byId("curve").replaceChildren();
  byId("lines").replaceChildren();
  if (!curve) return;
  const {drawn, bands, before} = lines(), wide = byId("curve").clientWidth, high = byId("curve").clientHeight;
  const values = [...drawn.map(line => line.values), ...bands.flatMap(band => [band.low, band.high])].flat().filter(isNumber);
  const size = roundStep(least(values), most(values), 5), low = Math.floor(least(values) / size) * size;
  const top = Math.max(low + size, Math.ceil(most(values) / size) * size), last = curve.times.length - 1;
  const x = at => +(38 + (wide - 50) * at / last).toFixed(1), y = value => +(high - 22 - (high - 44) * (value - low) / (top - low)).toFixed(1);
  const add = (name, attributes, text) => element(byId("curve"), name, attributes, text);
  byId("curve").setAttribute("viewBox", `0 0 ${wide} ${high}`);
  add("text", {x: 0, y: 12}, network.unit);
  for (let tick = low; tick <= top + size / 2; tick += size) {
    add("path", {d: `M38 ${y(tick)}H${wide - 12}`});
    add("text", {x: 32, y: y(tick) + 4, "text-anchor": "end"}, `${+tick.toFixed(6)}`);
  }
  const minutes = at => 60 * +curve.times[at].slice(11, 13) + +curve.times[at].slice(14, 16);
  const every = [5, 10, 15, 30, 60, 120, 240, 480, 1440].find(span => x(span / network.step_minutes) - x(0) >= 52) || 1440;
  curve.times.forEach((time, at) => {
    if (minutes(at) % every === 0) add("text", {x: x(at), y: high - 4, "text-anchor": "middle"}, time.slice(11, 16));
  });
  for (const {name, low: lower, high: upper} of bands) {
    const inside = [...lower.keys()].filter(at => isNumber(lower[at]));
    const edge = [...inside.map(at => [at, upper[at]]), ...inside.reverse().map(at => [at, lower[at]])];
    add("path", {class: name, d: `M${edge.map(([at, value]) => `${x(at)} ${y(value)}`).join("L")}Z`});
  }
  for (const {name, values: line, text} of drawn) {
    const path = line.map((value, at) => isNumber(value) ? `${isNumber(line[at - 1]) ? "L" : "M"}${x(at)} ${y(value)}` : "");
    add("path", {class: name, d: path.join("") || "M0 0"});
    line.forEach((value, at) => {  // an observation between two gaps
      if (isNumber(value) && !isNumber(line[at - 1]) && !isNumber(line[at + 1])) add("circle", {cx: x(at), cy: y(value), r: 2.5});
    });
    keyed(byId("lines"), ["path", {class: name, d: "M0 10H20"}], text);
  }
  const at = before - 1 + step();
  add("path", {class: "at", d: `M${x(at)} 20V${high - 20}`});
  const ends = step() && bands.length ? ` (${shown(bands[0].low[at])} to ${shown(bands[0].high[at])})` : "";
  const value = valuesAt(step())[chosen], number = isNumber(value) ? `${shown(value)} ${network.unit}${ends}` : "no observation";
  byId("value").textContent = `${moment(step())}, ${clock(step()).slice(11)}: ${number}, climatology ${shown(curve.usual[at])}.`;
}

// --- the table ------------------------------------------------------------------------------------------------------

// key: of a column.  text: its head.  value: what it sorts by.  write: what a cell shows.
function columns() {
  const values = valuesAt(step());
  const all = [
    {key: "sensor", text: "sensor", value: column => network.sensors[column].id, write: text => text},
    {key: "value", text: moment(step()), value: column => values[column], write: shown},
    {key: "share", text: "of free-flow speed", value: column => rated(column, values[column]),
      write: share => isNumber(share) ? `${Math.round(100 * share)} %` : DASH},
    {key: "lowest", text: "lowest forecast", value: column => lowest[column], write: shown},
    {key: "input", text: "input", value: column => latest.input_status[0][column], write: text => text},
  ];
  return all.filter(({key}) => key !== "share" || shares());
}

const looks = key => key === "sensor" || key === "input" ? "" : "n";

// The row of a sensor, made when it is first shown.
function rowOf(column, listed) {
  if (!rows.has(column)) {
    const row = document.createElement("tr");
    row.dataset.sensor = column;
    for (const {key} of listed) {
      if (key === "sensor") element(element(row, "th", {scope: "row"}), "button", {type: "button"});
      else element(row, "td", {class: looks(key)});
    }
    rows.set(column, row);
  }
  return rows.get(column);
}

function tabulate() {
  const listed = columns(), word = byId("find").value.trim().toLowerCase();
  const {value} = listed.find(({key}) => key === order.key), keys = network.sensors.map((_, column) => value(column));
  const compared = (one, other) => isNumber(one) ? one - other : collator.compare(one, other);
  const rank = (one, other) => (keys[one] === null) - (keys[other] === null) || order.sign * compared(keys[one], keys[other]);
  const matching = [...keys.keys()].filter(column => named(network.sensors[column]).toLowerCase().includes(word)).sort(rank);
  heads(listed);
  const ordered = matching.slice(0, ROWS).map(column => rowOf(column, listed)), body = byId("rows");
  for (const row of ordered) {
    listed.forEach(({value, write}, at) => {
      const cell = at ? row.children[at] : row.firstChild.firstChild, text = write(value(+row.dataset.sensor));
      if (cell.textContent !== text) cell.textContent = text;
    });
  }
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  if (body.children.length !== ordered.length || ordered.some((row, at) => body.children[at] !== row)) {
    body.replaceChildren(...ordered);
    focused?.focus({preventScroll: true});
  }
  byId("more").textContent = matching.length > ROWS ? `${ROWS} of ${matching.length} sensors: search or sort for the others.`
    : matching.length ? "" : "No sensor has this in its name.";
  return matching.find(column => isNumber(valuesAt(0)[column])) ?? matching[0];
}

function heads(listed) {
  const head = byId("head");
  if (!head.children.length) {
    for (const {key} of listed) {
      element(element(head, "th", {scope: "col", class: looks(key)}), "button", {type: "button"}).addEventListener("click", () => {
        order = {key, sign: order.key === key ? -order.sign : 1};
        tabulate();
      });
    }
  }
  listed.forEach(({key, text}, at) => {
    const arrow = key !== order.key ? "" : order.sign > 0 ? " \u25b2" : " \u25bc";
    head.children[at].firstChild.textContent = text + arrow;
    head.children[at].setAttribute("aria-sort", !arrow ? "none" : order.sign > 0 ? "ascending" : "descending");
  });
}

// --- loading --------------------------------------------------------------------------------------------------------

function draw() {
  const values = valuesAt(step()), name = `${moment(step())}, ${clock(step())}`;
  byId("time").textContent = name;
  byId("ahead").setAttribute("aria-valuetext", name);
  for (const dot of dots) {
    const look = level(rated(dot.column, values[dot.column]));
    if (look === dot.look) continue;
    dot.look = look;
    dot.radius = look === "n" ? dot.size * 0.6 : dot.size * (1.15 - 0.08 * look);
    dot.circle.setAttribute("r", dot.radius.toFixed(1));
    byId("dots").querySelector(`.s${look}`).append(dot.circle);
  }
  if (dots.length) label();
  const read = values.filter(isNumber);
  const all = read.length ? `mean ${shown(mean(read))}, lowest ${shown(least(read))} ${network.unit}` : "no observation";
  byId("name").textContent = `${network.feature} of ${network.sensors.length} sensors, ${name}`;
  byId("about").textContent = `A map of the sensors, coloured by value: ${all}. The table has all values.`;
  byId("said").textContent = `${read.length} of ${network.sensors.length} sensors, ${moment(step())}: ${all}.`
    + (latest.alerts ? ` Likely ${below()} ahead: ${latest.alerts.length}.` : "");
  const first = tabulate();
  if (chosen === null && first !== undefined) choose(first, false);
  else drawCurve();
}

// How old the data is, and what is wrong: the same words as in ready.
async function check() {
  const state = await get("ready"), zone = latest.timezone ? ` (${latest.timezone})` : "";
  byId("age").textContent = `Last data: ${state.last_data}, ${clock(0)}${zone}.`
    + (state.reason ? ` ${state.reason[0].toUpperCase()}${state.reason.slice(1)}.` : "");
  byId("age").classList.toggle("late", state.reason !== "");
}

async function load() {
  try {
    network = network || await get("sensors");
    byId("title").textContent = `${network.dataset}: ${network.feature.replaceAll("_", " ")} in ${network.unit}`;
    if (asked.latest !== "yes") {
      byId("said").textContent = "The file of this server has no lookback to forecast from. "
        + "It answers requests to forecast.";
      return;
    }
    const next = await get("forecast/latest?short=true"), values = Object.values(next.forecast)[0][0];
    if (!latest || JSON.stringify(latest) !== JSON.stringify(next)) {
      const first = latest === null;
      latest = next;
      lowest = network.sensors.map((_, column) => least(values.map(row => row[column])));
      scale = shares() ? {low: 0.4, high: 1, step: 0.1}
        : classes([...next.last_observed[network.feature][0], ...values.flat()].filter(isNumber));
      byId("ahead").max = values.length;
      byId("last").textContent = `+${values.length * network.step_minutes} min`;
      byId("ask").hidden = true;
      byId("shown").hidden = false;
      if (first) place();
      legend();
      ring();
      if (chosen !== null) choose(chosen, false);
      draw();
    }
    await check();
  } catch (error) {
    if (error.status === 401) {
      byId("ask").hidden = false;
      byId("said").textContent = "The server did not take this token.";
      return;
    }
    byId("age").textContent = `The server did not answer (${error.message}).`
      + (latest ? ` The numbers are those of ${latest.origin[0]}.` : "");
    byId("age").classList.add("late");
  }
}

byId("ahead").addEventListener("input", draw);
byId("find").addEventListener("input", tabulate);
byId("rows").addEventListener("click", event => choose(+event.target.closest("tr").dataset.sensor));
byId("ask").addEventListener("submit", event => { event.preventDefault(); token = byId("token").value; load(); });
new ResizeObserver(() => { if (curve) drawCurve(); }).observe(byId("curve").parentElement);
if (asked.token === "yes") {
  byId("ask").hidden = false;
  byId("said").textContent = "This server asks for its token.";
} else load();
setInterval(() => {
  if (latest && !document.hidden) asked.follow === "yes" ? load() : check();
}, AGAIN_MS);
