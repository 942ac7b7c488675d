// Where steps go: each as one stacked bar, as long as its time, cut into what it was spent on.

const PARTS = [
  ["compute", "compute"], ["communication", "exposed communication"], ["bubble", "pipeline bubble"], ["idle", "idle"],
  ["data", "waiting for data"], ["optimizer", "optimizer"], ["checkpoint", "checkpoint"], ["rest", "the rest of the step"],
  ["whole", "parts not known"],
];
const MOST_BARS = 25;

// Shares by family: "compute/gemm" counts as compute.
function folded(shares) {
  const parts = {};
  for (const [name, value] of Object.entries(shares)) {
    const key = name.split("/")[0];
    parts[key] = (parts[key] ?? 0) + value;
  }
  return parts;
}

function partsOf(layout) {
  if (layout.shares) return folded(layout.shares);
  const data = layout.data_seconds_fraction;
  return known(data) ? { data, rest: Math.max(0, 1 - data) } : null;
}

// The parts that some of the bars have, in their order: [key, words].
function partsIn(bars) {
  const has = (key) => bars.some((parts) => parts[key] > 0);
  const other = new Set(bars.flatMap((parts) => Object.keys(parts)).filter((key) => has(key) && !PARTS.some(([name]) => name === key)));
  return [...PARTS.filter(([key]) => has(key)), ...[...other].map((key) => [key, key])];
}

function swatch(key) {
  return el("span", { class: `swatch p-${key}`, "aria-hidden": "true" });
}

function legend(parts) {
  return parts.map(([key, name]) => el("span", { class: "key" }, swatch(key), name));
}

function inWords(parts) {
  return partsIn([parts]).map(([key, name]) => `${name} ${percent(parts[key])}`).join(", ");
}

function stackedBar(parts, width, attributes) {
  const pieces = partsIn([parts]).map(([key]) => el("span", { class: `piece p-${key}`, vars: { "flex-grow": String(parts[key]) } }));
  return el("span", { class: "track" }, el("span", { class: "bar", role: "img", vars: { width: `${(100 * width).toFixed(2)}%` }, ...attributes }, pieces));
}

class Breakdown {
  constructor(context, choose) {
    this.title = "Where the step goes";
    this.choose = choose;
    this.most = MOST_BARS;
    this.usable = context.rows.some((row) => row.ran && partsOf(row.layout));
    this.list = el("ol", { class: "bars" });
    this.note = el("p", { class: "note" });
    this.root = el("div", {}, this.note, this.list);
  }

  update(rows, selected) {
    this.last = [rows, selected];
    const all = rows.filter((row) => row.ran && partsOf(row.layout));
    const shown = all.slice(0, this.most);
    const longest = greatest(shown.map((row) => row.layout.step_seconds.median));
    refill(this.note, legend(partsIn(shown.map((row) => partsOf(row.layout)))));
    refill(this.list, shown.map((row) => this.bar(row.layout, longest, row.layout.label === selected)));
    if (all.length > shown.length) this.list.append(el("li", { class: "more" }, this.moreButton(all.length)));
  }

  moreButton(total) {
    return el("button", { type: "button", on: { click: () => { this.most = Infinity; this.update(...this.last); } } }, `Show all ${whole(total)}`);
  }

  bar(layout, longest, selected) {
    const parts = partsOf(layout);
    const words = inWords(parts);
    return el("li", { class: selected ? "selected" : null },
      el("button", { type: "button", class: "label", on: { click: () => this.choose(layout.label) } }, broken(layout.label)),
      stackedBar(parts, layout.step_seconds.median / longest, { "aria-label": words, title: words }),
      el("span", { class: "value" }, seconds(layout.step_seconds.median)));
  }
}
