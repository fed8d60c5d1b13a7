"use strict";
// What the scripts of both moving maps share.
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
