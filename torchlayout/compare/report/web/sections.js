// What is read and not used: header, verdict, best layout, reasons, figures, how it was measured.

function header(context, themeButton) {
  const { study } = context.report;
  const created = new Date(study.created);
  const when = Number.isNaN(created.valueOf()) ? study.created : created.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  return el("header", {}, el("div", {}, el("p", { class: "eyebrow" }, "torchlayout compare"), el("h1", {}, study.name),
    el("p", { class: "setting" }, context.report.setting, when ? `; ${when}` : "")), themeButton);
}

function verdict(context) {
  const said = context.report.verdict;
  const measured = context.rows.some((row) => row.ran);
  const mood = !measured ? "open" : said.fair && said.parity ? "good" : "bad";
  const largest = context.layouts.map((layout) => layout.parity).filter(Boolean)
    .reduce((worst, parity) => (!worst || (parity.loss_difference ?? Infinity) > (worst.loss_difference ?? Infinity) ? parity : worst), null);
  const apart = largest?.loss_difference === 0 ? "are equal" : `differ by at most ${exponent(largest?.loss_difference)}`;
  const parity = largest ? `: losses ${apart}, tolerance ${exponent(largest.tolerance)}` : "";
  const answers = measured ? [
    answer(said.fair, "Fair: same data, weights, tokens, optimizer, settings, software", "Not fair: the layouts did not run on equal terms"),
    answer(said.parity, `Same training${parity}`, "No parity: the layouts did not train the same model"),
  ] : [];
  return el("section", { class: `card verdict ${mood}`, "aria-labelledby": "verdict" },
    el("h2", { id: "verdict" }, "Verdict"), el("p", { class: "sentence" }, said.sentence),
    el("ul", { class: "answers" }, answers, el("li", {}, context.report.statuses)),
    said.problems.length ? el("div", { class: "problems" }, el("h3", {}, "What is wrong"), el("ul", {}, said.problems.map((problem) => el("li", {}, problem)))) : null);
}

function answer(good, yes, no) {
  return el("li", { class: good ? "good" : "bad" }, good ? yes : no);
}

function bestBox(context) {
  const best = context.layouts.find((layout) => layout.label === context.best);
  if (!best) return null;
  const tile = (name, value, small) => value !== UNKNOWN && el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, value, small ? el("small", {}, small) : null));
  const against = best.label === context.baseline ? "the baseline" : [interval(best.ratio), `against ${context.baseline}`].filter(Boolean).join(", ");
  return el("section", { class: "card best", "aria-labelledby": "best" },
    el("h2", { id: "best" }, "Best layout ", el("code", {}, broken(best.label))),
    el("dl", { class: "tiles" },
      tile("Speed", times(best.ratio?.value), against), tile("Step", seconds(best.step_seconds?.median), range(best.step_seconds)),
      tile("Tokens/s", count(best.tokens_per_second?.median)), tile("MFU", percent(best.mfu)),
      tile("Peak memory", gibibytes(best.peak_memory_bytes), known(best.peak_memory_rank) ? `rank ${best.peak_memory_rank}` : null)),
    best.torchrun ? codeBlock("Command", best.torchrun) : null,
    best.config_toml ? el("details", {}, el("summary", {}, "Configuration (TOML)"), codeBlock("Configuration", best.config_toml)) : null);
}

function reasonList(layout) {
  return el("ul", { class: "reasons" }, layout.why_slower.map((reason) => el("li", {}, reason)));
}

const MOST_REASONS = 20;

function whySlower(context) {
  const losers = context.rows.filter((row) => row.ran && row.layout.why_slower.length);
  if (!losers.length) return null;
  const sorted = ordered(losers, (layout) => layout.step_seconds.median, false);
  const best = context.layouts.find((layout) => layout.label === context.best);
  const item = ({ layout }) => el("li", {},
    el("p", {}, dot(context.families[layout.family]), el("b", {}, broken(layout.label)), ` takes ${times(layout.step_seconds.median / best.step_seconds.median)} as long`), reasonList(layout));
  const list = el("ul", { class: "losers" }, sorted.slice(0, MOST_REASONS).map(item));
  const more = sorted.length > MOST_REASONS && el("button", {
    type: "button", on: { click: () => { put(list, sorted.slice(MOST_REASONS).map(item)); more.remove(); } },
  }, `Show all ${whole(sorted.length)}`);
  const traced = context.layouts.some((layout) => layout.shares);
  const note = traced ? null : el("p", { class: "note" }, "What differs is named; what each difference costs only traces of the runs would tell.");
  return section("Why the others lose", note, list, more);
}

function figures(context) {
  if (!context.report.drawn.length) return null;
  return section("What each choice is worth", el("p", { class: "note" }, "The best layout for each value of a choice, as in arXiv 2311.05610."),
    el("div", { class: "figures" }, context.report.drawn.map((figure) => el("img", { alt: figure.title, class: "drawn", "data-name": figure.name }))));
}

// The files are drawn in one ink, which is exchanged for that of the theme.
function inkFigures(root, drawn) {
  const [ink, soft] = colours(root, "--ink", "--soft").map(hexadecimal);
  for (const figure of drawn) {
    const image = root.querySelector(`img.drawn[data-name="${figure.name}"]`);
    const svg = figure.svg.replaceAll(figure.ink, ink).replaceAll(figure.soft, soft);
    if (image) image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  }
}

function hexadecimal(colour) {
  const parts = colour.match(/\d+(\.\d+)?/g).slice(0, 3);
  return `#${parts.map((part) => Math.round(Number(part)).toString(16).padStart(2, "0")).join("")}`;
}

function measured(context) {
  const { study } = context.report;
  const table = (title, facts) => Object.keys(facts).length ? el("div", {}, el("h3", {}, title),
    el("table", { class: "facts" }, el("tbody", {}, Object.entries(facts).map(([name, value]) =>
      el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, typeof value === "object" && value ? JSON.stringify(value) : String(value))))))) : null;
  const precision = typeof study.precision === "string" ? { precision: study.precision } : study.precision;
  return section("How it was measured",
    el("p", {}, `Times are medians over the ${study.steps - study.warmup_steps} steps after the warm-up; memory is the peak of the worst rank. ${study.mfu_note}`),
    el("div", { class: "facts-grid" }, table("Model", study.model), table("Precision", precision), table("Hardware", study.hardware), table("Software", study.software)));
}

// The schedule's bubble is a formula; traces tell what it was.
function bubbles(layout) {
  const traced = layout.shares ? folded(layout.shares).bubble : null;
  if (!known(layout.bubble_fraction) || !known(traced)) return null;
  return el("p", {}, `Pipeline bubble: ${percent(layout.bubble_fraction)} by the schedule's formula, ${percent(traced)} of the traced step.`);
}

// What the row of a layout opens to.
function details(layout, context) {
  const repeats = layout.repeats.length && el("table", { class: "repeats" },
    el("thead", {}, el("tr", {}, ["Run", "Status", "Step time", "Tokens/s", "Log"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, layout.repeats.map((repeat) => el("tr", {},
      el("td", {}, el("code", {}, repeat.directory)), el("td", {}, statusChip(repeat.status), repeat.reason ? el("small", {}, repeat.reason) : null),
      el("td", {}, seconds(repeat.step_seconds_median)), el("td", {}, count(repeat.tokens_per_second_median)),
      el("td", {}, el("code", {}, repeat.log ?? UNKNOWN))))));
  return el("div", { class: "details" },
    bubbles(layout),
    layout.why_slower.length ? [el("h3", {}, layout.status === "ok" ? `Why it is slower than ${context.best}` : "Why it has no figures"), reasonList(layout)] : null,
    repeats || null,
    layout.torchrun ? codeBlock("Command", layout.torchrun) : null,
    layout.config_toml ? codeBlock("Configuration", layout.config_toml) : null);
}
