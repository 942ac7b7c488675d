// Numbers as a person reads them; text.py has the same for the Markdown report.

const UNKNOWN = "\u2013";
const STATUS_WORDS = {
  ok: "measured", oom: "out of memory", timeout: "timed out", failed: "failed",
  skipped: "not run", pending: "not run yet", running: "running",
};

const known = (value) => value !== null && value !== undefined;
const percent = (value, digits = 1) => (known(value) ? `${(100 * value).toFixed(digits)}%` : UNKNOWN);
const times = (value) => (known(value) ? `${value.toFixed(2)}\u00d7` : UNKNOWN);
const gibibytes = (value) => (known(value) ? `${(value / 2 ** 30).toPrecision(3)} GiB` : UNKNOWN);
const exponent = (value) => (known(value) ? (value === 0 ? "0" : value.toExponential(1)) : "not finite");
const whole = (value) => Math.round(value).toLocaleString("en-US");

// Math.max of a list is a call with as many arguments, which overflows its stack.
const greatest = (values, least = -Infinity) => values.reduce((most, value) => Math.max(most, value), least);

function count(value) {
  if (!known(value)) return UNKNOWN;
  return value >= 100 ? whole(value) : String(Number(value.toPrecision(3)));
}

// 2^20 as 1 MiB.
function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const power = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)));
  return `${Number((value / 1024 ** power).toPrecision(3))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

// 1.5e11 of a unit as 150 G: rates are decimal.
function decimal(value, unit) {
  if (!known(value)) return UNKNOWN;
  const power = Math.min(5, Math.max(0, Math.floor(Math.log10(Math.max(1, value)) / 3)));
  return `${Number((value / 1000 ** power).toPrecision(3))} ${["", "k", "M", "G", "T", "P"][power]}${unit}`;
}

function seconds(value) {
  if (!known(value)) return UNKNOWN;
  if (value >= 100) return `${whole(value)} s`;
  if (value >= 1) return `${value.toFixed(value >= 10 ? 1 : 2)} s`;
  if (value === 0) return "0 s";
  if (value >= 1e-3) return `${Number((value * 1e3).toPrecision(3))} ms`;
  return `${Number((value * 1e6).toPrecision(3))} \u00b5s`;
}

function range(spread) {
  return spread && spread.low < spread.high ? `${seconds(spread.low)} to ${seconds(spread.high)}` : null;
}

function interval(ratio) {
  return ratio && known(ratio.low) && known(ratio.high) ? `${ratio.low.toFixed(2)} to ${ratio.high.toFixed(2)}` : null;
}

function differing(fair) {
  return Object.entries(fair ?? {}).filter(([, equal]) => equal === false).map(([name]) => name);
}
