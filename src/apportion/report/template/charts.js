"use strict";
// What all pages share: charts, tables and options.
// All text of users goes through textContent or a chart's rows; nothing here makes HTML of it.
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const views = {};

// --- small helpers

function options(select, values, chosen) {
  select.replaceChildren(...values.map((value) => Object.assign(document.createElement("option"), { value, textContent: value })));
  if (values.includes(chosen)) select.value = chosen;
}

function table(head, rows) {
  const made = document.createElement("table");
  const line = (cells, tag) => {
    const row = document.createElement("tr");
    row.append(...cells.map((cell) => Object.assign(document.createElement(tag), { textContent: cell })));
    return row;
  };
  made.append(line(head, "th"), ...rows.map((row) => line(row, "td")));
  return made;
}

function colors() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const text = { labelColor: value("--ink"), titleColor: value("--ink"), labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal" };
  return {
    background: "transparent",
    view: { stroke: value("--line") },
    axis: { ...text, gridColor: value("--line"), domainColor: value("--quiet"), tickColor: value("--quiet") },
    legend: text,
    text: { color: value("--ink") },
  };
}

async function draw(name, rows, change = (spec) => spec, chart = name) {
  // the chart in its place; several places may have the same kind of chart
  const place = byId(`chart-${name}`);
  if (views[name]) views[name].finalize();
  const spec = change(structuredClone(DATA.charts[chart]));
  const config = colors();
  for (const [part, values] of Object.entries(spec.config || {})) config[part] = { ...config[part], ...values };
  delete spec.config;
  if (spec.height.step) {
    // in pixels, since a width that fits its place and a height by steps do not go together
    const kinds = ["y", "yOffset"].map((axis) => spec.encoding[axis] && new Set(rows.map((row) => row[spec.encoding[axis].field])).size);
    spec.height = spec.height.step * (kinds[0] || 1) * (kinds[1] || 1);
  }
  spec.datasets = { ...spec.datasets, rows };
  views[name] = await vegaEmbed(place, spec, { actions: false, renderer: "svg", logLevel: 1, config, mode: "vega-lite" });
  return views[name].view;
}

// Drawings are made one after the other. One that is requested again while it waits is made once.
let pending = Promise.resolve();
const waiting = new Set();
function later(work) {
  if (waiting.has(work)) return pending;
  waiting.add(work);
  pending = pending.then(() => {
    waiting.delete(work);
    return work();
  });
  return pending;
}
