// Memory of each rank: by phase of the step where it was measured so, else the peak of the run.

const MOST_ROWS = 64;

class MemoryView {
  constructor() {
    this.title = "Memory";
    this.root = el("div");
  }

  themed() { this.plot?.redraw(); }

  fill({ run, step, reply }) {
    this.plot = null;
    const found = byPhase(reply.memory ?? [], step) ?? wholeRun(run);
    if (!found) {
      this.root.replaceChildren(section("Memory", el("p", {}, "This run left no figures of memory.")));
      return;
    }
    const peak = found.ranks.reduce((most, rank) => (rank.most > most.most ? rank : most));
    const least = Math.min(...found.ranks.map((rank) => rank.most));
    const phase = found.phases.reduce((most, name) => ((peak.peaks[name] ?? 0) > (peak.peaks[most] ?? 0) ? name : most));
    const tile = (name, value, small) => el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, value, small ? el("small", {}, small) : null));
    const plot = new MemoryPlot(found);
    const card = section(found.title,
      el("dl", { class: "tiles" }, tile("Peak", bytes(peak.most), `rank ${peak.rank}${found.phases.length > 1 ? `, ${phase}` : ""}`),
        tile("Least of a rank", bytes(least), peak.most > least ? `${percent(1 - least / peak.most)} below the peak` : "all ranks alike")),
      found.ranks.length > 1 ? plot.root : null, el("p", { class: "note" }, found.note));
    this.root.replaceChildren(card, section("Ranks and phases", this.table(found, peak.most)));
    if (found.ranks.length > 1) { this.plot = plot; plot.redraw(); }
  }

  table(found, most) {
    const cell = (value) => (known(value) ? el("span", { class: "meter", vars: { "--fill": `${(100 * value / most).toFixed(1)}%` } }, bytes(value)) : UNKNOWN);
    const rows = (ranks) => ranks.map((rank) => [`rank ${rank.rank}`, ...found.phases.map((name) => cell(rank.peaks[name]))]);
    const headings = ["Rank", ...found.phases];
    const holder = el("div", {}, figureTable(headings, rows(found.ranks.slice(0, MOST_ROWS)), 1));
    if (found.ranks.length > MOST_ROWS) {
      holder.append(el("p", { class: "more" }, el("button", { type: "button", on: { click: () => holder.replaceChildren(figureTable(headings, rows(found.ranks), 1)) } }, `Show all ${whole(found.ranks.length)}`)));
    }
    return holder;
  }
}

function byPhase(memory, step) {
  const entries = memory.map((entry) => [entry, entry.steps.find((one) => one.step === step) ?? entry.steps[0]]).filter(([, one]) => one?.phases.length);
  if (!entries.length) return null;
  const phases = [...new Set(entries.flatMap(([, one]) => one.phases.map((phase) => phase.phase)))];
  const ranks = entries.map(([entry, one]) => {
    const peaks = {};
    for (const { phase, peak_bytes: peak } of one.phases) peaks[phase] = Math.max(peaks[phase] ?? 0, peak);
    return { rank: entry.rank, peaks, most: Math.max(...Object.values(peaks)) };
  });
  const resident = entries.some(([entry]) => entry.measure === "resident");
  const note = resident ? "Resident memory of the process, with Python and torch themselves." : "Peak of the allocator in each phase.";
  return { title: `Memory in step ${entries[0][1].step}`, phases, ranks, note };
}

function wholeRun(run) {
  if (!run.memory_by_rank.length) return null;
  const ranks = run.memory_by_rank.map((peak, rank) => ({ rank, peaks: { "whole run": peak }, most: peak }));
  return { title: "Memory of the run", phases: ["whole run"], ranks, note: "Peak since the start of the run. With profile.memory = true the phases of a profiled step are told apart." };
}

const PHASE_COLOURS = { forward: "forward", backward: "backward", weight: "weight", reduce: "communication", optimizer: "optimizer", data: "data", checkpoint: "checkpoint" };

const WHOLE_STEPS = Array.from({ length: 13 }, (_, power) => 2 ** power); // between the numbers of the axis: ranks have no halves

class MemoryPlot extends Plot {
  constructor(found) {
    super("Peak memory by rank", "Arrow keys go through the ranks", () => {});
    Object.assign(this, found);
    this.items = found.ranks.map((rank) => ({ layout: { label: `rank ${rank.rank}` } }));
  }

  redraw() {
    const ink = colours(this.root, "--soft", "--line");
    const spare = ["compute", "bubble", "rest", "idle", "other"];
    const names = this.phases.map((phase, index) => PHASE_COLOURS[phase] ?? spare[index % spare.length]);
    const palette = kindColours(this.root, names).map(({ colour }) => colour);
    const few = this.ranks.length <= 48;
    this.draw({
      scales: { x: { time: false, range: (_, low, high) => [low - 0.5, high + 0.5] }, y: { range: (_, low, high) => [0, high * 1.1 || 1] } },
      cursor: { drag: { x: true, y: false, setScale: true }, points: { show: false }, x: false, y: false },
      series: [{}, ...this.phases.map((_, index) => ({ stroke: palette[index], width: 2, points: { show: few, size: 7, fill: palette[index] } }))],
      axes: [
        { ...this.axis(ink, "rank", (_, splits) => splits.map((value) => (Number.isInteger(value) ? String(value) : "")), 44), incrs: WHOLE_STEPS },
        this.axis(ink, "peak memory (GiB)", (_, splits) => splits.map((value) => String(Number(value.toPrecision(4)))), 60),
      ],
    }, [this.ranks.map((rank) => rank.rank), ...this.phases.map((name) => this.ranks.map((rank) => (known(rank.peaks[name]) ? rank.peaks[name] / 2 ** 30 : null)))]);
    const key = this.phases.map((phase, index) => el("span", { class: "key" }, swatch(names[index]), phase));
    this.canvas.parentElement.querySelector(".note").replaceChildren(...(this.phases.length > 1 ? key : []));
  }

  place(index) {
    const rank = this.ranks[index];
    return rank && [this.chart.valToPos(rank.rank, "x"), this.chart.valToPos(rank.most / 2 ** 30, "y")];
  }

  nearest(left) {
    let best = -1, least = Infinity;
    for (let index = 0; index < this.ranks.length; index++) {
      const distance = Math.abs(this.chart.valToPos(this.ranks[index].rank, "x") - left);
      if (distance < least) [best, least] = [index, distance];
    }
    return best;
  }

  describe(index) {
    const { rank, peaks } = this.ranks[index];
    return [`rank ${rank}`, ...Object.entries(peaks).map(([phase, peak]) => `${phase} ${bytes(peak)}`)];
  }
}
