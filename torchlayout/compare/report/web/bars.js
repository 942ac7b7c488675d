// The step of each layout as one stacked bar: as long as its time, cut into what it was spent on.

const PARTS = [
  ["compute", "compute"], ["communication", "exposed communication"], ["bubble", "pipeline bubble"], ["idle", "idle"],
  ["data", "waiting for data"], ["optimizer", "optimizer"], ["checkpoint", "checkpoint"], ["rest", "the rest of the step"],
];
const MOST_BARS = 25;

function partsOf(layout) {
  if (layout.shares) return layout.shares;
  const data = layout.data_seconds_fraction;
  return known(data) ? { data, rest: Math.max(0, 1 - data) } : null;
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
    const longest = Math.max(...shown.map((row) => row.layout.step_seconds.median));
    const present = PARTS.filter(([key]) => shown.some((row) => partsOf(row.layout)[key] > 0));
    const other = [...new Set(shown.flatMap((row) => Object.keys(partsOf(row.layout))))].filter((key) => !PARTS.some(([name]) => name === key));
    this.parts = [...present, ...other.map((key) => [key, key])];
    this.note.replaceChildren(...this.parts.map(([key, name]) => el("span", { class: "key" }, el("span", { class: `swatch p-${key}`, "aria-hidden": "true" }), name)));
    this.list.replaceChildren(...shown.map((row) => this.bar(row.layout, longest, row.layout.label === selected)));
    if (all.length > shown.length) this.list.append(el("li", { class: "more" }, this.moreButton(all.length)));
  }

  moreButton(total) {
    return el("button", { type: "button", on: { click: () => { this.most = Infinity; this.update(...this.last); } } }, `Show all ${whole(total)}`);
  }

  bar(layout, longest, selected) {
    const parts = partsOf(layout);
    const words = this.parts.filter(([key]) => parts[key] > 0).map(([key, name]) => `${name} ${percent(parts[key])}`).join(", ");
    const pieces = this.parts.map(([key]) => parts[key] > 0 && el("span", { class: `piece p-${key}`, vars: { "flex-grow": String(parts[key]) } }));
    return el("li", { class: selected ? "selected" : null },
      el("button", { type: "button", class: "label", on: { click: () => this.choose(layout.label) } }, broken(layout.label)),
      el("span", { class: "track" }, el("span", { class: "bar", role: "img", "aria-label": words, title: words, vars: { width: `${(100 * layout.step_seconds.median / longest).toFixed(2)}%` } }, pieces)),
      el("span", { class: "value" }, seconds(layout.step_seconds.median)));
  }
}
