// Reads and compares numbers as helpers/interview/answers.py does; tests/browser/test_book.py compares the two.
"use strict";

// Set by settings.js, which the build writes: UNITS (units by kind, factors, other names, scales) and WORDS.
const NUMBER = /^([+-]?)(\d{1,3}(?:[, _]\d{3})+(?!\d)|\d+)?(\.\d*)?(?:[eE]([+-]?\d+))?(?:\s*[×x*·]\s*10\s*(?:\^|\*\*)\s*([+-]?\d+))?/;
const ABOUT = /^(?:[~≈=约]|大约|大概|about|approximately)+\s*/i;
const LONGEST = 60;

function short(text) {
  return text.length <= 30 ? text : text.slice(0, 29) + "…";
}

// The value of a typed number in base units (bytes, seconds); unit: of a number that is typed without one.
function readNumber(given, unit, example) {
  const quoted = { given: short(given), example };
  let typed = given.normalize("NFKC").trim().replace(ABOUT, "").replace(/[.。!? ]+$/, "").replace("−", "-");
  const match = NUMBER.exec(typed);
  if (given.trim().length > LONGEST || !/\d/.test(match[2] || match[3] || "")) fail("no_number", quoted);
  let rest = typed.slice(match[0].length).trim();
  if (/^,\s*\d/.test(rest)) fail("decimal_comma", quoted);
  const digits = (match[2] || "0").replace(/[, _]/g, "") + (match[3] || "");
  let value = Number(`${match[1]}${digits}e${Number(match[4] || 0) + Number(match[5] || 0)}`);
  const divisor = /^\/\s*(\d{1,12}(?:\.\d+)?)\s*/.exec(rest);
  if (divisor && Number(divisor[1])) {
    value /= Number(divisor[1]);
    rest = rest.slice(divisor[0].length);
  }
  if (/^[\d/]/.test(rest)) fail("no_number", quoted);
  const scale = Object.keys(UNITS.scales).find((word) => rest.toLowerCase().startsWith(word)) || "";
  const known = readUnit(rest.slice(scale.length).trim(), unit, example);
  value *= (UNITS.scales[scale] || 1) * UNITS.factors[known];
  if (!Number.isFinite(value)) fail("no_number", quoted);
  return value;
}

function readUnit(spelled, asked, example) {
  if (!spelled) return asked;
  const units = Object.values(UNITS.kinds).flat();
  const lower = units.findLast((unit) => unit.toLowerCase() === spelled.toLowerCase());
  const known = UNITS.spoken[spelled.toLowerCase()] ?? (spelled in UNITS.factors ? spelled : lower);
  if (/^([KMGT]b(it)?s?(\/s)?|[kMGT]?bits?(\/s)?|[kKMGT]?bps)$/.test(spelled)) fail("bits", { unit: spelled, example });
  if (known === undefined) fail("unknown_unit", { unit: short(spelled), example });
  if (kindOf(known) !== kindOf(asked)) fail(asked ? "other_kind" : "no_unit_wanted", { unit: spelled, asked });
  return known;
}

function kindOf(unit) {
  const name = UNITS.spoken[unit] ?? unit;
  return Object.keys(UNITS.kinds).find((kind) => UNITS.kinds[kind].includes(name));
}

// "33 % too low", or from a factor of two on "8 times too high".
function howFarOff(value, truth) {
  if (truth === 0) return words("nothing_to_compare");
  const ratio = value / truth;
  if (ratio < 0) return words("other_sign");
  if (ratio === 0 || (ratio > 0.5 && ratio < 2)) {
    return words(ratio > 1 ? "percent_high" : "percent_low", { share: `${digits3(Math.abs(ratio - 1) * 100)} %` });
  }
  return words(ratio > 1 ? "times_high" : "times_low", { times: digits3(Math.max(ratio, 1 / ratio)) });
}

// Three significant digits, with commas.
function digits3(value) {
  return value.toLocaleString("en", { maximumSignificantDigits: 3 });
}

// A number with its unit: a whole one with commas, another one with four significant digits.
function formatNumber(value, unit = "") {
  const isWhole = Math.abs(value - Math.round(value)) <= 1e-9 * Math.abs(value);
  const options = isWhole ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 };
  return `${value.toLocaleString("en", options)} ${unit}`.trim();
}
