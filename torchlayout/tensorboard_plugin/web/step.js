// One step of one run: where its time went, when and on which rank. Below, apart, what is known of the traced steps only
// together.

class StepView {
  constructor(tip, source) {
    this.title = "Step";
    this.tip = tip;
    this.source = source;
    this.timeline = new Timeline(tip);
    this.above = el("div");
    this.below = el("div");
    this.notes = el("div");
    this.lanes = section("Timeline", this.timeline.root, this.notes);
    this.root = el("div", {}, this.above, this.lanes, this.below);
  }

  themed() { this.timeline.repaint(); }

  async fill({ run, window, step, reply }) {
    const found = reply.breakdown;
    const one = found?.steps.find((entry) => entry.step === step);
    refill(this.above, missing(run, window, reply), one ? this.summary(found, one) : null);
    refill(this.below, one ? this.ranks(one) : null, found ? together(found, reply) : null);
    this.lanes.querySelector("h2").textContent = `Timeline of step ${step}`;
    const asked = this.asked = `${run.label} ${window} ${step}`;
    this.lanes.hidden = step === null;
    if (step === null) return;
    this.timeline.root.hidden = true;
    refill(this.notes, el("p", { class: "note", role: "status" }, "Reading the timeline ..."));
    const answer = await this.source.timeline(run, window, step);
    if (asked !== this.asked) return; // another was chosen meanwhile
    const lanes = answer.timeline?.lanes ?? [];
    refill(this.notes, noteList(answer.notes));
    this.lanes.hidden = !lanes.length && !answer.notes?.length;
    this.timeline.root.hidden = !lanes.length;
    if (lanes.length) this.timeline.show(answer.timeline);
  }

  summary(found, one) {
    const shares = meanShares(one);
    const parts = folded(shares);
    const worst = one.ranks.reduce((slow, rank) => ((rank.seconds ?? 0) > (slow?.seconds ?? 0) ? rank : slow), null);
    const overlap = mean(one.ranks.map((rank) => rank.overlap)), flops = mean(one.ranks.map((rank) => rank.flops_per_second));
    const lines = () => shareLines(`Step ${one.step}`, shares, percent);
    return section(`Step ${one.step}`,
      el("dl", { class: "tiles" },
        tile("Time, traced", seconds(one.seconds), known(found.untraced_seconds) ? el("span", { title: UNTRACED }, `untraced: ${seconds(found.untraced_seconds)}`) : null,
          worst && one.ranks.length > 1 ? `longest on rank ${worst.rank}` : null),
        knownTile("Computing", percent(parts.compute ?? null)), knownTile("Overlap", percent(overlap, 0), "of communication is hidden"),
        knownTile("While computing", decimal(flops, "FLOP/s"), "a rank, mean")),
      el("div", { class: "large" }, stackedBar(parts, 1, { tabindex: "0", "aria-label": inWords(parts), on: this.tip.on(lines) })),
      el("p", { class: "note" }, legend(partsIn([parts]).map(([key, name]) => [key, `${name} ${percent(parts[key])}`]))));
  }

  ranks(one) {
    const rows = one.ranks.filter((rank) => rank.seconds).map((rank) => {
      const shares = Object.fromEntries(Object.entries(rank.shares).map(([name, value]) => [name, value / rank.seconds]));
      return { ran: true, rank: rank.rank, layout: { label: `rank ${rank.rank}`, shares, step_seconds: { median: rank.seconds } } };
    });
    if (rows.length < 2) return null;
    const bars = new Breakdown({ rows }, (label) => this.timeline.toRank(rows.find((row) => row.layout.label === label).rank));
    bars.update(rows, null);
    return section(`Ranks in step ${one.step}`, bars.root);
  }
}

const UNTRACED = "median of the run's steps that were neither warm-up nor profiled: the profiler slows the others";

function tile(name, value, ...small) {
  return el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, value, small.filter(Boolean).map((words) => el("small", {}, words))));
}

function knownTile(name, value, ...small) {
  return value === UNKNOWN ? null : tile(name, value, ...small);
}

// "Steps 5 and 6": the window of traces.
function stepsInWords(found) {
  const steps = found.steps.map((entry) => entry.step);
  if (steps.length < 3) return `Step${steps.length > 1 ? "s" : ""} ${steps.join(" and ")}`;
  const all = steps.at(-1) - steps[0] === steps.length - 1;
  return all ? `Steps ${steps[0]} to ${steps.at(-1)}` : `${whole(steps.length)} steps from ${steps[0]} to ${steps.at(-1)}`;
}

function mean(values) {
  const found = values.filter(known);
  return found.length ? found.reduce((sum, value) => sum + value, 0) / found.length : null;
}

// Fractions of the step, over its ranks.
function meanShares(one) {
  const total = one.ranks.reduce((sum, rank) => sum + (rank.seconds ?? 0), 0) || 1;
  const shares = {};
  for (const rank of one.ranks) for (const [name, value] of Object.entries(rank.shares)) shares[name] = (shares[name] ?? 0) + value / total;
  return shares;
}

// Why there is nothing to see, and what to do about it.
function missing(run, window, reply) {
  if (reply.breakdown) return null;
  const notes = noteList(reply.notes);
  if (!window) return section("No traces", el("p", {}, "This run was not profiled. Its configuration says which steps are, in [profile]: for example steps = 2."), notes);
  return section("Not analysed", el("p", {}, "There are traces, but no analysis of them that can be read. This makes it:"), codeBlock("Command", run.command), notes);
}

function remarks(reply) {
  const notes = noteList([...reply.notes, ...reply.breakdown.notes]);
  return notes ? section("Notes on these traces", notes) : null;
}

// What is known of the traced steps together: the choice of a step changes none of it, and it says so.
function together(found, reply) {
  const several = found.steps.length > 1;
  const titled = (title) => (several ? `${stepsInWords(found)} together: ${title[0].toLowerCase()}${title.slice(1)}` : title);
  const parts = [remarks(reply), whereItWent(found, titled), tables(found, titled)].flat().filter(Boolean);
  if (!parts.length) return null;
  return el("div", { class: several ? "together" : null },
    several ? el("p", { class: "apart" }, el("b", {}, `${stepsInWords(found)} together.`), " What follows is of all traced steps: another choice of a step changes none of it.") : null, parts);
}

function whereItWent(found, titled) {
  const bubble = found.pipeline ? tile("Bubble", bubbleWords(found.pipeline.bubble), bubbleNote(found.pipeline)) : null;
  if (!bubble && !found.causes.length) return null;
  return section(titled("Where the time went"), bubble ? el("dl", { class: "tiles" }, bubble) : null, found.causes.length ? causeList(found.causes.map((cause) => cause.sentence)) : null);
}

function bubbleWords(bubble) {
  return known(bubble) ? percent(bubble) : "not measured";
}

function bubbleNote({ bubble, schedule }) {
  const of = known(bubble) ? "of the pipeline's time" : "some ranks of the pipeline were not traced";
  return `${of}${known(schedule) ? `; schedule: ${percent(schedule)}` : ""}`;
}

// Collectives, stages, kernels.
function tables(found, titled) {
  const collectives = found.collectives.map((one) => [one.collective, one.axis, count(one.count), count(one.group_size || null), bytes(one.bytes || null), seconds(one.seconds), seconds(one.exposed_seconds), decimal(one.bus_bytes_per_second, "B/s")]);
  const stages = found.stages.map((one) => [count(one.stage), count(one.rank), count(one.micro_batches), seconds(one.forward_seconds), seconds(one.backward_seconds), seconds(one.weight_seconds)]);
  const kernels = found.kernels.map((one) => [el("span", { class: "mono" }, one.name ?? UNKNOWN), one.class, count(one.count), seconds(one.seconds)]);
  const more = found.kernels_in_all - kernels.length, several = found.steps.length > 1;
  return [
    collectives.length ? section(titled("Collectives"), el("p", { class: "note" }, "Means of a rank and a step."), figureTable(["Collective", "Axis", "Calls", "Ranks", "Bytes", "Time", "Not hidden", "Bus bandwidth"], collectives, 2)) : null,
    stages.length > 1 ? section(titled("Stages"), el("p", { class: "note" }, "Times of one micro-batch; means over the steps."), figureTable(["Stage", "Rank", "Micro-batches", "Forward", "Backward", "Weights"], stages, 0)) : null,
    kernels.length ? section(titled("Kernels"), el("details", {}, el("summary", {}, `${whole(found.kernels_in_all)} names, longest first; sums over ${several ? "the steps and " : ""}all traced ranks`),
      figureTable(["Name", "Class", "Calls", "Time"], kernels, 2), more > 0 ? el("p", { class: "note" }, `and ${whole(more)} more in breakdown.json`) : null)) : null,
  ];
}

function figureTable(headings, rows, words) {
  const cell = (value, index) => el(index ? "td" : "th", { scope: index ? null : "row", class: index < words ? "word" : null }, value ?? UNKNOWN);
  return el("div", { class: "wide-table", tabindex: "0", role: "region", "aria-label": headings.join(", ") }, el("table", { class: "figures-table" },
    el("thead", {}, el("tr", {}, headings.map((name, index) => el("th", { scope: "col", class: index < Math.max(1, words) ? "word" : null }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell))))));
}
