// The page of a model.
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const short = (value) => (value === null ? "" : `${value >= 0 ? "+" : "−"}${Math.abs(value).toFixed(1)}`);

// Certain bounds: the lower one is rounded down, the upper one up.
const outward = (low, high) => `${(Math.floor(1000 * low + 1e-5) / 10).toFixed(1)} % to ${(Math.ceil(1000 * high - 1e-5) / 10).toFixed(1)} %`;

function classColors(rows) {
  // of the classes in the rows, in their order: the colors of page.css in the current mode
  const drawn = new Set(rows.map((row) => row.class));
  const named = DATA.colors.filter(([name]) => drawn.has(name));
  const style = getComputedStyle(document.documentElement);
  return { domain: named.map(([name]) => name), range: named.map(([, color]) => style.getPropertyValue(`--class-${color}`).trim()) };
}

function drawShares() {
  const rows = DATA.classes.slice(0, 24).flatMap((each) => [
    { class: each.name, kind: "known", share: each.known },
    { class: each.name, kind: "most probable class of", share: each.predicted },
  ]);
  return draw("shares", rows);
}

// --- tables by group

async function drawTables() {
  for (const [i, table] of DATA.tables.entries()) {
    const drawn = new Set(table.drawn);
    const rows = table.rows.filter((row) => drawn.has(row.group)).map((row) => ({
      ...row,
      interval: row.share_low === null ? "none" : `${percent(row.share_low)} to ${percent(row.share_high)}`,
      bounds: outward(row.share_min, row.share_max),
    }));
    await draw(`groups-${i}`, rows, (spec) => {
      spec.encoding.color.scale = classColors(rows);
      return spec;
    }, "groups");
  }
}

// --- bags

function bagRows(wanted) {
  const rows = [];
  for (const part of DATA.bags.parts) {
    const kind = part.learned ? "by the model, which may have learned from the bag" : "without having learned from the bag";
    part.bags.forEach((bag, i) => DATA.bags.classes.forEach((name, c) => {
      if (wanted !== "" && wanted !== String(c)) return;
      rows.push({
        bag, class: name, rows: part.rows[i], known: part.known[i][c], predicted: part.predicted[i][c],
        residual: short(part.residual[i][c]), learned: part.learned, kind,
      });
    }));
  }
  return rows;
}

function squared(spec, values) {
  // the same range of shares on both axes, with the line where predictions are exact
  const low = Math.max(0, Math.min(...values) - 0.03);
  const high = Math.min(1, Math.max(...values) + 0.03);
  spec.datasets = { diagonal: [{ x: low, y: low }, { x: high, y: high }] };
  const scale = { domain: [low, high], nice: false };
  spec.layer.forEach((layer) => ["x", "y"].forEach((axis) => { if (layer.encoding[axis]) layer.encoding[axis].scale = scale; }));
  if (spec.encoding) spec.encoding.x.scale = scale;
  return spec;
}

function drawBags() {
  const rows = bagRows(byId("class").value);
  const scale = classColors(bagRows(""));
  return draw("bags", rows, (spec) => {
    spec.layer.slice(1).forEach((layer) => { layer.encoding.color.scale = scale; });
    return squared(spec, rows.flatMap((row) => [row.known, row.predicted]));
  });
}

function drawCalibration() {
  const rows = DATA.calibration.rows;
  return draw("calibration", rows, (spec) => {
    spec.encoding.color.scale = classColors(rows);
    return squared(spec, rows.flatMap((row) => [row.low, row.high, row.predicted]));
  });
}

// --- training

function historyChoices() {
  const choices = new Map();
  for (const fit of DATA.history) for (const name of Object.keys(fit.curves)) choices.set(`${fit.stage}: ${name}`, { stage: fit.stage, name });
  return choices;
}

function drawHistory() {
  const { stage, name } = historyChoices().get(byId("quantity").value);
  const rows = [];
  for (const fit of DATA.history) {
    if (fit.stage !== stage || !fit.curves[name]) continue;
    fit.curves[name].forEach((value, i) => value === null || rows.push({ fit: fit.fit, epoch: fit.epochs[i], value }));
  }
  return draw("losses", rows);
}

// --- the page

async function drawAll() {
  await drawShares();
  await drawTables();
  if (DATA.bags) {
    await drawBags();
    if (byId("chart-sizes")) await draw("sizes", DATA.bags.sizes.map((size) => ({ size })));
  }
  if (DATA.calibration.rows) await drawCalibration();
  if (DATA.importances.rows.length) {
    const title = DATA.importances.kind === "permutation" ? "nats per row that the likelihood falls" : "share of what the splits gain";
    await draw("importance", DATA.importances.rows, (spec) => {
      spec.layer[0].encoding.x.title = title;
      return spec;
    });
  }
  if (DATA.history.length) await drawHistory();
  document.documentElement.dataset.ready = "yes";
}

function begin() {
  if (DATA.bags) {
    const named = [["", "all classes"], ...DATA.bags.classes.map((name, c) => [`${c}`, name])];
    byId("class").replaceChildren(...named.map(([value, textContent]) => Object.assign(document.createElement("option"), { value, textContent })));
    byId("class").addEventListener("change", () => later(drawBags));
  }
  if (DATA.history.length) {
    const longest = DATA.history.reduce((a, b) => (b.epochs.length > a.epochs.length ? b : a));
    options(byId("quantity"), [...historyChoices().keys()], `${longest.stage}: ${Object.keys(longest.curves)[0]}`);
    byId("quantity").addEventListener("change", () => later(drawHistory));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => later(drawAll));
  return later(drawAll);
}

begin();
