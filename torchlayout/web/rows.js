// One row for each layout, and what sorting and filtering ask of it.

const DEGREES = { pipeline: "pp", replicate: "dp", shard: "fsdp", context: "cp", tensor: "tp", micro_batch: "mb" };

function rowOf(layout, place) {
  // All degrees are words, ones too, so that tp1 finds the layouts without tensor parallelism.
  const words = new Set(layout.label.toLowerCase().split(/[-+\s]+/));
  for (const [axis, word] of Object.entries(DEGREES)) {
    if (known(layout.axes[axis])) words.add(`${word}${layout.axes[axis]}`);
  }
  const choices = Object.values(layout.axes).filter((value) => typeof value === "string");
  for (const choice of choices) words.add(choice.toLowerCase());
  const text = [layout.label, layout.reason ?? "", STATUS_WORDS[layout.status], layout.family].join(" ").toLowerCase();
  return { layout, place, words, text, ran: layout.status === "ok" && known(layout.step_seconds) };
}

const DEGREE = new RegExp(`^(${Object.values(DEGREES).join("|")})\\d+$`);

// Every term has to match; -term excludes. A degree such as tp2 is a whole word: it is not tp20.
function matches(row, terms) {
  return terms.every((term) => {
    const wanted = !term.startsWith("-") || term.length === 1;
    const word = wanted ? term : term.slice(1);
    const found = DEGREE.test(word) ? row.words.has(word) : row.words.has(word) || row.text.includes(word);
    return found === wanted;
  });
}

function filtered(rows, state) {
  const terms = state.text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) =>
    !state.hiddenStatuses.has(row.layout.status) && !state.hiddenFamilies.has(row.layout.family) && matches(row, terms));
}

// Made once: localeCompare makes one for each pair, which takes longer than the sort.
const NATURAL = new Intl.Collator("en", { numeric: true });

// Rows without a value stay last in both directions: nobody sorts to see what is missing.
function ordered(rows, value, descending) {
  const keyed = rows.map((row) => ({ row, key: value(row.layout) }));
  const sign = descending ? -1 : 1;
  keyed.sort((a, b) => {
    if (!known(a.key) || !known(b.key)) return known(b.key) - known(a.key) || a.row.place - b.row.place;
    if (a.key === b.key) return a.row.place - b.row.place;
    return typeof a.key === "string" ? sign * NATURAL.compare(a.key, b.key) : sign * (a.key - b.key);
  });
  return keyed.map(({ row }) => row);
}
