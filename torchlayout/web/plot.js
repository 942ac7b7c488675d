// A chart with two axes, drawn by uPlot. Pointer, keyboard and screen reader get the same.

const NEAR = 28; // pixels within which the pointer means a point

class Plot {
  // describe(index): text of a point; nearest(left, top): its index; place(index): its pixel, all inside the plot.
  constructor(title, hint, choose) {
    this.title = title;
    this.choose = choose;
    this.current = -1;
    this.canvas = el("div", {
      class: "canvas", tabindex: "0", role: "group", "aria-label": `${title}. ${hint}`,
      on: { keydown: (event) => this.key(event), blur: () => this.show(-1) },
    });
    this.note = el("p", { class: "note" });
    this.said = el("p", { class: "unseen", role: "status" });
    this.root = el("div", { class: "plot" }, this.canvas, this.note, this.said);
    this.pointer = el("div", { class: "pointer", hidden: true });
    this.tip = el("div", { class: "tip", hidden: true });
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  size() {
    const width = Math.max(260, Math.floor(this.canvas.clientWidth));
    return { width, height: Math.round(Math.min(420, Math.max(260, width * 0.5))) };
  }

  resize() {
    const { width, height } = this.size();
    if (this.chart && (this.chart.width !== width || this.chart.height !== height)) this.chart.setSize({ width, height });
  }

  draw(options, data) {
    this.chart?.destroy();
    const base = {
      ...this.size(), legend: { show: false }, padding: [12, 16, 0, 0],
      cursor: { drag: { x: true, y: true, setScale: true }, points: { show: false }, x: false, y: false },
    };
    this.chart = new uPlot({ ...base, ...options }, data, this.canvas);
    this.chart.over.append(this.pointer, this.tip);
    this.chart.over.addEventListener("mousemove", (event) => this.show(this.nearest(event.offsetX, event.offsetY)));
    this.chart.over.addEventListener("mouseleave", () => this.show(-1));
    this.chart.over.addEventListener("click", () => { if (this.current >= 0) this.choose(this.items[this.current].layout.label); });
    this.current = -1;
  }

  show(index, aloud = false) {
    this.current = index;
    const place = index < 0 ? null : this.place(index);
    this.pointer.hidden = this.tip.hidden = !place;
    if (!place) return;
    const [left, top] = place;
    this.pointer.style.transform = `translate(${left}px, ${top}px)`;
    const lines = this.describe(index);
    refill(this.tip, lines.map((line, number) => el(number ? "div" : "b", {}, line)));
    const { clientWidth: width, clientHeight: height } = this.chart.over;
    const x = left + 14 + this.tip.offsetWidth > width ? left - 14 - this.tip.offsetWidth : left + 14;
    const y = Math.min(Math.max(0, top - this.tip.offsetHeight / 2), height - this.tip.offsetHeight);
    this.tip.style.transform = `translate(${Math.max(-40, x)}px, ${y}px)`;
    if (aloud) this.said.textContent = lines.join(", ");
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const total = this.items?.length ?? 0;
    if (step && total) {
      const from = this.current < 0 && step < 0 ? 0 : this.current;
      this.show((from + step + total) % total, true);
    } else if ((event.key === "Enter" || event.key === " ") && this.current >= 0) this.choose(this.items[this.current].layout.label);
    else if (event.key === "Escape") this.show(-1);
    else return;
    event.preventDefault();
  }

  axis(colour, label, values, size) {
    const [ink, line] = colour;
    const font = "12px system-ui, sans-serif";
    return { label, stroke: ink, font, labelFont: font, labelSize: 20, size, values, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  }
}

// A fifth of the range around the points; at least something where all values are equal.
function padded(_, low, high) {
  if (!known(low) || !known(high)) return [0, 1];
  const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}
