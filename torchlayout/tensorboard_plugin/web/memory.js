// Memory of each rank: by phase of the step where it was measured so, else the peak of the run.

const MOST_RANKS = 512;
const ALIKE = 0.005; // of the largest: within it peaks count as equal

// What each phase is, where its name is shown.
const PHASE_WORDS = new Map([
  ["data", "waiting for the batch"], ["forward", "activations of micro-batches"], ["backward", "gradients of micro-batches; of a split backward the inputs' half"],
  ["weight", "the weights' half of a split backward"], ["loss", "the head and the loss"], ["reduce", "waiting for the gradients' reduction"],
  ["exchange", "facts of the step between ranks"], ["clip", "norm and clipping of gradients"], ["optimizer", "update of the weights"],
  ["evaluation", "loss on held-out data"], ["checkpoint", "saving"], ["step", "the whole step, gaps between phases included"],
]);

class MemoryView {
  constructor() {
    this.title = "Memory";
    this.bySize = false;
    this.root = el("div");
  }

  fill({ run, step, reply }) {
    const found = byPhase(reply.memory ?? [], step) ?? wholeRun(run);
    if (!found) {
      refill(this.root, section("Memory", el("p", {}, "This run left no figures of memory.")));
      return;
    }
    const map = new HeatMap(found);
    const holder = el("div", {}, map.table(this.bySize));
    const order = (name, bySize) => el("button", { type: "button", "data-mode": name, "aria-pressed": String(bySize === this.bySize), on: { click: (event) => {
      this.bySize = bySize;
      for (const button of event.currentTarget.parentElement.children) button.setAttribute("aria-pressed", String(button === event.currentTarget));
      refill(holder, map.table(bySize));
    } } }, name);
    refill(this.root, section(found.title,
      el("p", { class: "most" }, map.sentence()), map.spread(),
      found.ranks.length > 1 ? el("p", { class: "switches", role: "group", "aria-label": "Order of the ranks" }, order("By rank", false), order("By size", true)) : null,
      holder, map.legend(),
      found.phases.length > 1 && el("dl", { class: "phases" }, found.phases.map((name) => el("div", {}, el("dt", {}, name), el("dd", {}, PHASE_WORDS.get(name) ?? "no phase of ours")))),
      el("p", { class: "note" }, found.note)));
  }
}

// A row for each rank, a column for each phase, shaded by size.
class HeatMap {
  constructor(found) {
    Object.assign(this, found);
    const all = this.ranks.flatMap((rank) => [...rank.peaks.values()]);
    this.largest = greatest(this.ranks.map((rank) => rank.most));
    // Small differences look small: a shade is not stretched over less than a tenth.
    this.palest = Math.min(0.9 * this.largest, all.reduce((least, peak) => Math.min(least, peak), Infinity));
    this.digits = Math.min(6, Math.max(1, 3 - Math.floor(Math.log10(this.largest / 2 ** 30))));
  }

  size(value) { return (value / 2 ** 30).toFixed(this.digits); }
  among(value) { return value >= this.largest * (1 - ALIKE); }

  // The most, and all ranks and phases that have it; the whole step has it of the phases in it.
  sentence() {
    const has = (name) => this.ranks.filter((rank) => this.among(rank.peaks.get(name) ?? 0)).map((rank) => rank.rank);
    const inner = this.phases.filter((name) => name !== "step" && has(name).length);
    const places = new Map();
    for (const name of inner.length ? inner : this.phases.filter((one) => has(one).length)) {
      const ranks = rankWords(has(name), this.ranks.length);
      places.set(ranks, [...(places.get(ranks) ?? []), name]);
    }
    const where = ([ranks, names]) => (names[0] === "whole run" ? ranks : names[0] === "step" ? `${ranks}, between the phases` : `${ranks} in ${listed(names)}`);
    const several = inner.length > 1 || this.ranks.filter((rank) => this.among(rank.most)).length > 1;
    return `The most that a rank holds is ${this.size(this.largest)} GiB: ${[...places].map(where).join("; ")}${several ? " (all within 0.5%)" : ""}.`;
  }

  spread() {
    const least = this.ranks.reduce((found, rank) => (rank.most < found.most ? rank : found));
    return this.among(least.most) ? null : el("p", { class: "note" }, `Rank ${least.rank} has the lowest peak: ${this.size(least.most)} GiB, ${percent(1 - least.most / this.largest)} less.`);
  }

  table(bySize, most = MOST_RANKS) {
    const rows = bySize ? [...this.ranks].sort((a, b) => b.most - a.most || a.rank - b.rank) : this.ranks;
    const heading = (name) => el("th", { scope: "col", title: PHASE_WORDS.get(name) }, name);
    const table = el("div", { class: "wide-table heat", tabindex: "0", role: "region", "aria-label": "Peak memory of each rank in each phase, GiB" }, el("table", { class: "figures-table" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "word" }, "Peak, GiB"), this.phases.map(heading))),
      el("tbody", {}, rows.slice(0, most).map((rank) => el("tr", {}, el("th", { scope: "row" }, `rank ${rank.rank}`), this.phases.map((name) => this.cell(rank.peaks.get(name))))))));
    if (rows.length <= most) return table;
    const all = el("button", { type: "button", on: { click: () => holder.replaceWith(this.table(bySize, Infinity)) } }, `Show all ${whole(rows.length)}`);
    const holder = el("div", {}, table, el("p", { class: "more" }, all));
    return holder;
  }

  cell(value) {
    if (!known(value)) return el("td", {}, UNKNOWN);
    const shade = `${(45 * Math.max(0, value - this.palest) / (this.largest - this.palest)).toFixed(1)}%`;
    return el("td", { class: this.among(value) ? "top" : null, vars: { "--shade": shade } }, this.among(value) ? el("strong", {}, this.size(value)) : this.size(value));
  }

  legend() {
    return el("p", { class: "note spaced" }, el("span", { class: "key" }, this.size(this.palest), el("span", { class: "ramp", "aria-hidden": "true" }), `${this.size(this.largest)} GiB`),
      el("span", { class: "key" }, el("span", { class: "swatch framed", "aria-hidden": "true" }), "the most, and what is within 0.5% of it"));
  }
}

function listed(words) {
  return words.length < 2 ? words.join() : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

// "ranks 0 to 3 and 7"; of more than six pieces the rest is counted.
function rankWords(ranks, total) {
  if (ranks.length === total && total > 1) return `all ${whole(total)} ranks`;
  const sorted = [...ranks].sort((a, b) => a - b), pieces = [];
  for (const rank of sorted) {
    if (pieces.at(-1)?.[1] === rank - 1) pieces.at(-1)[1] = rank;
    else pieces.push([rank, rank]);
  }
  const words = pieces.slice(0, 6).map(([from, to]) => (from === to ? `${from}` : to === from + 1 ? `${from}, ${to}` : `${from} to ${to}`));
  const rest = pieces.slice(6).reduce((sum, [from, to]) => sum + to - from + 1, 0);
  return `rank${ranks.length > 1 ? "s" : ""} ${listed(rest ? [...words, `${whole(rest)} more`] : words)}`;
}

function byPhase(memory, step) {
  const entries = memory.map((entry) => [entry, entry.steps.find((one) => one.step === step) ?? entry.steps[0]]).filter(([, one]) => one?.phases.length);
  if (!entries.length) return null;
  const names = new Set(entries.flatMap(([, one]) => one.phases.map((phase) => phase.phase)));
  const phases = [...names].filter((name) => name !== "step").concat(names.has("step") ? ["step"] : []);
  const ranks = entries.map(([entry, one]) => {
    const peaks = new Map();
    for (const { phase, peak_bytes: peak } of one.phases) peaks.set(phase, Math.max(peaks.get(phase) ?? 0, peak));
    return { rank: entry.rank, peaks, most: greatest([...peaks.values()]) };
  });
  const resident = entries.some(([entry]) => entry.measure === "resident");
  const note = resident ? "Resident memory of the process, with Python and torch themselves, read where phases begin and end." : "Peak of the allocator in each phase.";
  return { title: `Memory in step ${entries[0][1].step}`, phases, ranks, note };
}

function wholeRun(run) {
  if (!run.memory_by_rank.some((peak) => peak > 0)) return null;
  const ranks = run.memory_by_rank.map((peak, rank) => ({ rank, peaks: new Map([["whole run", peak]]), most: peak }));
  return { title: "Memory of the run", phases: ["whole run"], ranks, note: "Peak since the start of the run. With profile.memory = true the phases of a profiled step are told apart." };
}
