// The page of runs.
const runNamed = (name) => DATA.runs.find((run) => run.name === name);

function unpack(text) {
  // base64 of little-endian 16-bit integers
  const bytes = atob(text);
  return Array.from({ length: bytes.length / 2 }, (_, i) => bytes.charCodeAt(2 * i) + 256 * bytes.charCodeAt(2 * i + 1));
}

function framed(spec, low, high) {
  // the same frame whatever is in it
  spec.encoding.x.scale = { domain: [low[0], high[0]], nice: false };
  spec.encoding.y.scale = { domain: [low[1], high[1]], nice: false };
  return spec;
}

// --- overview

function drawOverview() {
  const rows = DATA.cells.filter((cell) => cell.group === byId("overview-group").value).map((cell) => ({
    ...cell,
    size: cell.size || "–",
    shown: cell.deviation === null ? cell.mean.toFixed(2) : `${cell.mean.toFixed(2)} (deviation ${cell.deviation.toFixed(2)})`,
  }));
  return draw("overview", rows.sort((a, b) => Number(a.size) - Number(b.size)));
}

// --- curves

const WORDS = {
  test_accuracy: "test accuracy, %",
  validation_error: "proportion error of validation bags, %",
  "label_accuracy.predicted": "correct among training instances: predictions, %",
  "label_accuracy.labels": "correct among training instances: transport labels, %",
  "label_accuracy.mean": "correct among training instances: mean of the last rounds, %",
  "label_accuracy.fresh_labels": "correct among training instances: transport of this epoch's predictions, %",
  "label_accuracy.fresh_mean": "correct among training instances: mean of the last five of these, %",
  proportion_error: "proportion error, %",
  label_gap: "largest distance of labels from proportions",
  change: "change of predictions, δ",
};
const words = (name) => WORDS[name] || name.replace("terms.", "loss term: ").replace("seconds.", "seconds of an epoch: ");

function quantities() {
  const names = new Set(DATA.runs.filter((run) => run.group === byId("group").value).flatMap((run) => Object.keys(run.curves)));
  const known = [...Object.keys(WORDS).filter((name) => names.has(name)), ...[...names].filter((name) => !WORDS[name])];
  const select = byId("quantity");
  const before = select.value;
  select.replaceChildren(...known.map((value) => Object.assign(document.createElement("option"), { value, textContent: words(value) })));
  if (names.has(before)) select.value = before;
}

function cellBoxes() {
  const cells = [...new Set(DATA.runs.filter((run) => run.group === byId("group").value).map((run) => run.cell))];
  const boxes = cells.map((cell) => {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: true, value: cell });
    box.addEventListener("change", () => later(drawCurves));
    label.append(box, cell);
    return label;
  });
  byId("cells").replaceChildren(byId("cells").querySelector("legend"), ...boxes);
}

function drawCurves() {
  const quantity = byId("quantity").value;
  const shown = new Set([...byId("cells").querySelectorAll("input:checked")].map((box) => box.value));
  const rows = [];
  for (const run of DATA.runs) {
    if (run.group !== byId("group").value || !shown.has(run.cell) || !run.curves[quantity]) continue;
    run.curves[quantity].forEach((value, i) => value === null || rows.push({ run: run.name, cell: run.cell, epoch: run.epochs[i], value }));
  }
  return draw("curves", rows, (spec) => {
    spec.title = { text: words(quantity), anchor: "start", fontSize: 12, color: colors().axis.labelColor };
    return spec;
  });
}

function drawTime() {
  const rows = [];
  const runs = DATA.runs.filter((run) => run.group === byId("group").value);
  for (const run of runs) Object.entries(run.time).forEach(([part, seconds], order) => rows.push({ run: run.name, part, seconds, order }));
  const parts = [...new Set(rows.map((row) => row.part))];
  byId("time-table").replaceChildren(table(["run", ...parts], runs.map((run) => [run.name, ...parts.map((part) => run.time[part] ?? "–")])));
  return draw("time", rows);
}

// --- bags

const className = (sample, c) => sample.classes[c] ?? `class ${c}`;

function shortName(name, names) {
  // as many letters as tell it from the other classes, but at least three
  let n = 3;
  while (n < name.length && names.some((other) => other !== name && other.startsWith(name.slice(0, n)))) n++;
  return name.slice(0, n);
}

function opened(run) {
  // A sample with its packed numbers as arrays, made once.
  if (!run.opened) {
    const sample = run.sample;
    const widths = sample.bags.map((bag) => bag.classes.length);
    const starts = (counts) => counts.map((_, i) => counts.slice(0, i).reduce((a, b) => a + b, 0));
    run.opened = {
      first: starts(sample.shown),
      firstShare: starts(widths),
      truth: unpack(sample.truth),
      epochs: sample.epochs.map((line) => ({
        epoch: line.epoch,
        regions: line.regions ? unpack(line.regions) : null,
        shares: unpack(line.shares),
        predicted: unpack(line.predicted),
        labels: line.labels ? unpack(line.labels) : null,
      })),
    };
  }
  return run.opened;
}

async function drawBag() {
  const run = runNamed(byId("run").value);
  if (!run.sample) return;
  const { sample } = run;
  const open = opened(run);
  const b = Number(byId("bag").value);
  const bag = sample.bags[b];
  const line = open.epochs[Number(byId("epoch").value)];
  byId("epoch-now").textContent = `${line.epoch}`;
  const shown = sample.shown[b];
  const at = (values) => values.slice(open.first[b], open.first[b] + shown);
  const labels = at(line.labels || line.predicted);
  const whole = shown === bag.size;
  const shares = [];
  bag.classes.forEach((c, i) => {
    const of = { class: className(sample, c) };
    shares.push({ ...of, kind: "known", share: bag.known[i] });
    if (line.labels && whole) shares.push({ ...of, kind: "transport labels", share: Math.round((1000 * labels.filter((l) => l === c).length) / shown) / 10 });
    shares.push({ ...of, kind: "predicted", share: line.shares[open.firstShare[b] + i] });
  });
  await draw("shares", shares);
  byId("caption-shares").textContent = `Proportions of the bag, from above: ${[...new Set(shares.map((row) => row.kind))].join(", ")}.`;
  await drawInstances(run, b, line, labels, at(line.predicted), at(open.truth));
  const rows = [];
  for (const each of open.epochs) {
    at(each.labels || each.predicted).forEach((label, i) => {
      const name = className(sample, label);
      const classes = { predicted: className(sample, at(each.predicted)[i]), truth: className(sample, at(open.truth)[i]) };
      rows.push({ epoch: each.epoch, instance: i + 1, class: name, label: name, short: shortName(name, sample.classes), ...classes });
    });
  }
  const used = new Set(rows.map((row) => row.class));
  await draw("history", rows, (spec) => {
    // colors in the order of the classes; there are only ten
    const domain = sample.classes.length > 10 ? sample.classes.filter((name) => used.has(name)) : sample.classes;
    spec.layer[0].encoding.color.scale = { domain };
    return spec;
  });
}

function drawInstances(run, b, line, labels, predicted, truth) {
  const { sample } = run;
  const points = DATA.points[run.picture];
  const sprite = DATA.sprites[run.picture];
  const first = opened(run).first[b];
  const wrong = labels.filter((label, i) => label !== truth[i]).length;
  const kind = line.labels ? "Transport labels" : "Predictions";
  const part = sample.shown[b] < sample.bags[b].size ? `; ${sample.shown[b]} of the bag's ${sample.bags[b].size} instances were kept` : "";
  byId("caption-tiles").textContent = `${kind} at epoch ${line.epoch}: ${wrong} of ${labels.length} wrong${wrong ? (points ? ", ringed" : ", dashed") : ""}${part}.`;
  byId("tiles").replaceChildren();
  byId("chart-points").classList.toggle("gone", !points);
  if (points) {
    const rows = labels.map((label, i) => ({
      x: points[first + i][0], y: points[first + i][1], instance: i + 1, wrong: label !== truth[i],
      label: className(sample, label), predicted: className(sample, predicted[i]), truth: className(sample, truth[i]),
    }));
    const values = (axis) => points.map((point) => point[axis]);
    const ends = (pick) => [pick(...values(0)), pick(...values(1))];
    return draw("points", rows, (spec) => {
      for (const channel of ["shape", "color"]) spec.layer[0].encoding[channel].scale = { domain: sample.classes };
      return framed(spec, ends(Math.min), ends(Math.max));
    });
  }
  const tilesBefore = sprite ? sample.shown.slice(0, b).reduce((a, n) => a + Math.min(n, sprite.each), 0) : 0;
  byId("tiles").replaceChildren(...labels.map((label, i) => {
    const tile = document.createElement("div");
    tile.className = label === truth[i] ? "tile" : "tile wrong";
    if (sprite && i < sprite.each) tile.append(picture(sprite, tilesBefore + i, `instance ${i + 1}`));
    const lines = [className(sample, label)];
    if (predicted[i] !== label) lines.push(`predicted ${className(sample, predicted[i])}`);
    if (label !== truth[i]) lines.push(`✗ is ${className(sample, truth[i])}`);
    for (const text of lines) tile.append(Object.assign(document.createElement("div"), { textContent: text }));
    return tile;
  }));
  return null;
}

function picture(sprite, i, name) {
  const size = 48;
  const made = document.createElement("span");
  made.className = "picture";
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", name);
  Object.assign(made.style, {
    width: `${size}px`, height: `${size}px`, backgroundImage: `url("${sprite.url}")`,
    backgroundSize: `${size * sprite.columns}px ${size * sprite.rows}px`,
    backgroundPosition: `${-size * (i % sprite.columns)}px ${-size * Math.floor(i / sprite.columns)}px`,
  });
  return made;
}

// --- classes, confidence, settings

async function drawRun() {
  const run = runNamed(byId("run").value);
  byId("recipe").textContent = JSON.stringify(run.recipe, null, 1);
  byId("where").textContent = JSON.stringify(run.where, null, 1);
  byId("command").textContent = run.command;
  byId("copied").textContent = "";
  for (const part of document.querySelectorAll("#bags, .pair .needs-sample")) part.classList.toggle("gone", !run.sample);
  await drawClasses(run);
  if (!run.sample) return;
  const chosen = byId("bag").value || "0";
  byId("bag").replaceChildren(...run.sample.bags.map((bag, i) => Object.assign(document.createElement("option"), { value: `${i}`, textContent: `${bag.name} (${bag.size} instances)` })));
  byId("bag").value = chosen in run.sample.bags ? chosen : "0";
  byId("epoch").max = run.sample.epochs.length - 1;
  byId("epoch").value = run.sample.epochs.length - 1;
  await drawCalibration(run);
  await drawBag();
}

async function drawClasses(run) {
  const { confusion } = run;
  byId("classes").classList.toggle("gone", !confusion);
  if (!confusion) return;
  const matrix = confusion.full;
  const right = matrix ? matrix.map((row, i) => row[i]) : confusion.right;
  const of = matrix ? matrix.map((row) => row.reduce((a, b) => a + b, 0)) : confusion.of;
  const name = (c) => (run.sample ? className(run.sample, c) : `class ${c}`);
  byId("figure-confusion").classList.toggle("gone", !matrix);
  byId("figure-pairs").classList.toggle("gone", Boolean(matrix));
  if (matrix) {
    const rows = matrix.flatMap((row, i) => row.map((count, j) => ({ true: name(i), predicted: name(j), count, share: of[i] ? Math.round((1000 * count) / of[i]) / 10 : 0 })));
    await draw("confusion", rows);
  } else {
    byId("pairs").replaceChildren(table(["true", "predicted", "times"], confusion.pairs.slice(0, 20).map(([i, j, n]) => [name(i), name(j), n])));
  }
  await draw("classes", right.map((n, c) => ({ class: name(c), accuracy: of[c] ? (100 * n) / of[c] : 0, of: of[c] })));
}

function drawCalibration(run) {
  const bins = run.sample.calibration.filter(([n]) => n > 0);
  const all = bins.reduce((a, [n]) => a + n, 0);
  const gap = bins.reduce((a, [n, confidence, right]) => a + (n / all) * Math.abs(confidence - right), 0);
  byId("caption-calibration").textContent = `Accuracy by confidence, and the line on which the two are equal. Expected calibration error: ${(100 * gap).toFixed(2)} %.`;
  const percent = (share) => Math.round(1000 * share) / 10;
  return draw("calibration", bins.map(([instances, confidence, right]) => ({ instances, confidence: percent(confidence), right: percent(right) })));
}

byId("copy").addEventListener("click", async () => {
  const text = byId("command").textContent;
  try {
    await navigator.clipboard.writeText(text);
    byId("copied").textContent = "copied";
  } catch {
    getSelection().selectAllChildren(byId("command"));
    byId("copied").textContent = document.execCommand("copy") ? "copied" : "selected; press Ctrl-C";
  }
});

// --- two moons

const withGrid = DATA.runs.filter((run) => run.sample && run.sample.grid && run.sample.bags[0].classes.length === 2 && DATA.points[run.picture]);

function moonRows(run) {
  const { sample } = run;
  const open = opened(run);
  const { low, high, across, up } = sample.grid;
  const [dx, dy] = [(high[0] - low[0]) / (across - 1), (high[1] - low[1]) / (up - 1)];
  const rows = [];
  open.epochs.forEach((line, s) => {
    const step = s + 1;
    line.regions.forEach((percent, i) => {
      const [x, y] = [low[0] + dx * (i % across), low[1] + dy * Math.floor(i / across)];
      rows.push({ step, kind: "region", x: x - dx / 2, x2: x + dx / 2, y: y - dy / 2, y2: y + dy / 2, share: percent });
    });
    sample.bags.forEach((bag, b) => {
      for (let i = open.first[b]; i < open.first[b] + sample.shown[b]; i++) {
        const [x, y] = DATA.points[run.picture][i];
        const label = (line.labels || line.predicted)[i];
        rows.push({ step, kind: "point", x, y, bag: bag.name, known: bag.known[1], label: className(sample, label), wrong: label !== open.truth[i],
          predicted: className(sample, line.predicted[i]), truth: className(sample, open.truth[i]) });
      }
    });
  });
  return rows;
}

function moonCaption(id, run, step) {
  const open = opened(run);
  const line = open.epochs[Math.min(step, open.epochs.length) - 1];
  const wrong = (line.labels || line.predicted).filter((label, i) => label !== open.truth[i]).length;
  byId(id).textContent = `${run.name}, epoch ${line.epoch}: of ${open.truth.length} points in ${run.sample.bags.length} bags, ${wrong} ${line.labels ? "labels" : "predictions"} wrong.`;
}

async function drawMoons() {
  const [left, right] = [runNamed(byId("moons-left").value), runNamed(byId("moons-right").value)];
  const longest = Math.max(left.sample.epochs.length, right.sample.epochs.length);
  const repeated = (run) => {
    // a shorter run stays at its last step
    const rows = moonRows(run);
    const last = run.sample.epochs.length;
    for (let step = last + 1; step <= longest; step++) rows.push(...rows.filter((row) => row.step === last).map((row) => ({ ...row, step })));
    return rows;
  };
  const before = views.moons ? Math.min(views.moons.view.signal("step"), longest) : longest;
  const start = (spec) => {
    spec.params[0].value = before;
    if (spec.params[0].bind) spec.params[0].bind.max = longest;
    return framed(spec, left.sample.grid.low, left.sample.grid.high);
  };
  const one = await draw("moons", repeated(left), start);
  const other = await draw("moons2", repeated(right), start);
  const caption = (step) => {
    moonCaption("caption-moons", left, step);
    moonCaption("caption-moons2", right, step);
  };
  one.addSignalListener("step", (_, step) => {
    other.signal("step", step).run();
    caption(step);
  });
  caption(before);
}

// --- the page

function begin() {
  const names = DATA.runs.map((run) => run.name);
  options(byId("overview-group"), DATA.groups.map((group) => group.name));
  byId("overview-group").addEventListener("change", () => later(drawOverview));
  options(byId("group"), [...new Set(DATA.runs.map((run) => run.group))]);
  options(byId("run"), names, (DATA.runs.find((run) => run.sample && run.sample.epochs.some((line) => line.labels)) || DATA.runs[0]).name);
  if (!DATA.runs.some((run) => run.sample)) for (const part of document.querySelectorAll(".needs-sample")) part.classList.add("gone");
  if (withGrid.length) {
    const grids = withGrid.map((run) => run.name);
    options(byId("moons-left"), grids);
    const after = withGrid.find((run) => run.sample.epochs.some((line) => line.labels));
    const before = after && withGrid.find((run) => run.cell === after.cell.replace("+plot", "") && run.name.split("/").pop() === after.name.split("/").pop());
    options(byId("moons-left"), grids, before ? before.name : grids[0]);
    options(byId("moons-right"), grids, after ? after.name : grids[grids.length - 1]);
  } else {
    for (const part of document.querySelectorAll(".needs-moons")) part.classList.add("gone");
  }
  quantities();
  cellBoxes();
  byId("group").addEventListener("change", () => { quantities(); cellBoxes(); later(drawCurves); later(drawTime); });
  byId("quantity").addEventListener("change", () => later(drawCurves));
  byId("run").addEventListener("change", () => later(drawRun));
  byId("bag").addEventListener("change", () => later(drawBag));
  byId("epoch").addEventListener("input", () => later(drawBag));
  for (const id of ["moons-left", "moons-right"]) byId(id).addEventListener("change", () => later(drawMoons));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => later(drawAll));
  return later(drawAll);
}

async function drawAll() {
  await drawOverview();
  await drawCurves();
  if (withGrid.length) await drawMoons();
  await drawRun();
  await drawTime();
  document.documentElement.dataset.ready = "yes";
}

begin();
