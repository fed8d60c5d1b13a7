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

// The level of a colour scale from 0 to count - 1, or "n" for no value.
function level(value, scale, count) {
  if (!known(value) || !scale) return "n";
  const above = scale.invert ? scale.high - value : value - scale.low;
  return Math.max(0, Math.min(count - 1, Math.floor(count * above / (scale.high - scale.low))));
}
