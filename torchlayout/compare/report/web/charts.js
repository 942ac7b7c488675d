// The charts of a study: speed against memory, and losses.

class Scatter extends Plot {
  constructor(context, choose) {
    const mfu = context.rows.every((row) => !row.ran || known(row.layout.mfu));
    super(`${mfu ? "MFU" : "Speed"} against memory`, "Arrow keys go through the layouts, Enter opens one in the table", choose);
    this.context = context;
    this.mfu = mfu;
    this.speed = (layout) => (this.mfu ? layout.mfu : layout.tokens_per_second_per_device);
    this.usable = context.rows.some((row) => this.has(row));
  }

  has(row) {
    return row.ran && known(row.layout.peak_memory_bytes) && known(this.speed(row.layout));
  }

  update(rows, selected) {
    const { families } = this.context;
    this.items = rows.filter((row) => this.has(row)).sort((a, b) => a.layout.peak_memory_bytes - b.layout.peak_memory_bytes || a.place - b.place);
    // Sorting the table changes nothing here, and 1,000 points take longer to draw than the rows that are seen.
    const drawn = [colours(this.root, "--ink")[0], selected, ...this.items.map((row) => row.place)].join();
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const colour = colours(this.root, "--soft", "--line");
    const [ink] = colours(this.root, "--ink");
    const names = Object.keys(families).filter((name) => this.items.some((row) => row.layout.family === name));
    const only = (test) => this.items.map((row) => (test(row.layout) ? this.speed(row.layout) : null));
    const points = (fill, stroke, size) => ({ points: { show: true, size, fill, stroke, width: stroke === fill ? 0 : 2 }, paths: () => null });
    const size = this.items.length > 300 ? 7 : 10;
    const speedValues = (_, splits) => splits.map((value) => (this.mfu ? `${Number((100 * value).toFixed(1))}%` : count(value)));
    this.draw({
      scales: { x: { time: false, range: padded }, y: { range: padded } },
      series: [{}, ...names.map((name) => points(families[name], families[name], size)), points("transparent", ink, size + 6)],
      axes: [
        this.axis(colour, "peak memory of the worst rank (GiB)", (_, splits) => splits.map((value) => String(Number(value.toPrecision(4)))), 44),
        this.axis(colour, this.mfu ? "MFU" : "tokens/s a device", speedValues, 64),
      ],
    }, [this.items.map((row) => row.layout.peak_memory_bytes / 2 ** 30), ...names.map((name) => only((l) => l.family === name)), only((l) => l.label === selected)]);
    this.note.replaceChildren(...names.map((name) => el("span", { class: "key" }, dot(families[name]), name)),
      el("span", {}, "Drag to zoom, double-click for all; click a point to open it in the table."));
  }

  place(index) {
    const layout = this.items[index]?.layout;
    return layout && [this.chart.valToPos(layout.peak_memory_bytes / 2 ** 30, "x"), this.chart.valToPos(this.speed(layout), "y")];
  }

  nearest(left, top) {
    let best = -1, least = NEAR;
    for (let index = 0; index < this.items.length; index++) {
      const [x, y] = this.place(index);
      const distance = Math.hypot(x - left, y - top);
      if (distance < least) [best, least] = [index, distance];
    }
    return best;
  }

  describe(index) {
    const { layout } = this.items[index];
    const speed = this.mfu ? `MFU ${percent(layout.mfu)}` : `${count(layout.tokens_per_second_per_device)} tokens/s a device`;
    return [layout.label, speed, gibibytes(layout.peak_memory_bytes), `step ${seconds(layout.step_seconds?.median)}`];
  }
}

const MOST_LINES = 40;

class Losses extends Plot {
  constructor(context, choose) {
    super("Losses", "Arrow keys go through the layouts, Enter opens one in the table", choose);
    this.context = context;
    const base = context.layouts.find((layout) => layout.label === context.baseline);
    this.base = base ? stepsOf(base) : new Map();
    this.relative = false;
    this.usable = context.rows.some((row) => row.ran && row.layout.losses.values.length);
    const flip = (relative) => {
      this.relative = relative;
      for (const button of this.modes.children) button.setAttribute("aria-pressed", String((button.dataset.mode === "difference") === relative));
      this.update(this.rows, this.selected);
    };
    this.modes = el("div", { class: "switches", role: "group", "aria-label": "What is drawn" },
      el("button", { type: "button", "data-mode": "loss", "aria-pressed": "true", on: { click: () => flip(false) } }, "Loss"),
      el("button", { type: "button", "data-mode": "difference", "aria-pressed": "false", on: { click: () => flip(true) } }, `Difference from ${context.baseline}`));
    this.root.prepend(this.modes);
  }

  update(rows, selected) {
    [this.rows, this.selected] = [rows, selected];
    const all = rows.filter((row) => row.ran && row.layout.losses.values.length);
    const chosen = all.filter((row) => row.layout.label === selected);
    this.items = [...all.filter((row) => row.layout.label !== selected).slice(0, MOST_LINES - chosen.length), ...chosen];
    const curves = this.items.map((row) => stepsOf(row.layout));
    this.steps = [...new Set(curves.flatMap((curve) => [...curve.keys()]))].sort((a, b) => a - b);
    this.values = curves.map((curve) => this.steps.map((step) => this.value(curve.get(step), this.base.get(step))));
    const colour = colours(this.root, "--soft", "--line");
    const shown = (value) => (this.relative ? (value === 0 ? "0" : value.toExponential(1)) : String(Number(value.toPrecision(4))));
    const few = this.steps.length < 2;
    this.draw({
      scales: { x: { time: false, ...(few ? { range: padded } : {}) } },
      focus: { alpha: 0.25 },
      series: [{}, ...this.items.map((row) => ({
        stroke: this.context.families[row.layout.family], width: row.layout.label === selected ? 3 : 1.5, points: { show: few, size: 8 }, spanGaps: true,
      }))],
      axes: [
        this.axis(colour, "step", (_, splits) => splits.map((value) => (Number.isInteger(value) ? String(value) : "")), 44),
        this.axis(colour, this.relative ? "relative difference" : "loss", (_, splits) => splits.map(shown), 72),
      ],
    }, [this.steps, ...this.values]);
    this.note.textContent = all.length > this.items.length
      ? `${this.items.length} of ${whole(all.length)} layouts, the first of the table as it is sorted and filtered.`
      : "Layouts of the table as it is filtered; equal losses lie on each other.";
  }

  value(loss, base) {
    if (!this.relative || !known(loss)) return loss ?? null;
    return known(base) && base !== 0 ? (loss - base) / Math.abs(base) : null;
  }

  place(index) {
    const at = this.at ?? this.steps.length - 1;
    const value = this.values[index]?.[at];
    return known(value) ? [this.chart.valToPos(this.steps[at], "x"), this.chart.valToPos(value, "y")] : null;
  }

  nearest(left, top) {
    this.at = this.chart.posToIdx(left);
    let best = -1, least = NEAR;
    for (let index = 0; index < this.items.length; index++) {
      const distance = Math.abs((this.place(index)?.[1] ?? Infinity) - top);
      if (distance < least) [best, least] = [index, distance];
    }
    return best;
  }

  show(index, aloud = false) {
    if (aloud) this.at = this.steps.length - 1;
    if (this.chart && index !== this.current) this.chart.setSeries(index < 0 ? null : index + 1, { focus: true });
    super.show(index, aloud);
  }

  describe(index) {
    const at = this.at ?? this.steps.length - 1;
    const value = this.values[index][at];
    return [this.items[index].layout.label, `step ${this.steps[at]}`, this.relative ? `difference ${exponent(value)}` : `loss ${value.toFixed(6)}`];
  }
}

// The page holds every stride-th loss, and the last one.
function stepsOf({ losses: { stride, count: total, values } }) {
  return new Map(values.map((value, index) => [Math.min(1 + index * stride, total), value]));
}
