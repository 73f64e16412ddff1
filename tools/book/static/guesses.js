// The questions of a chapter: a form before the result, and guess, prediction and measurement in one row after it.
// Answers stay in this browser. Without this script the answers are folded and can be opened by hand.
"use strict";

const STORE = "rank-by-rank.guesses";
let kept = null; // the answers where the browser stores nothing
const QUESTIONS = JSON.parse(document.getElementById("rr-questions")?.textContent || "{}");

function storedGuesses() {
  try {
    return kept ?? JSON.parse(localStorage.getItem(STORE) || "{}");
  } catch {
    return kept ?? {}; // storage is switched off, or was written by something else
  }
}

// The first answer stays. isLate: whether the result had been opened before.
function store(key, entry) {
  const all = { ...storedGuesses(), [key]: { ...storedGuesses()[key], ...entry } };
  try {
    localStorage.setItem(STORE, JSON.stringify(all));
  } catch {
    // Storage is switched off: the answer is kept until the page is left.
    kept = all;
  }
}

function answersOf(key) {
  return [...document.querySelectorAll(`details.rr-answer[data-key~="${key}"]`)];
}

function isGuessed(key) {
  return "value" in (storedGuesses()[key] ?? {});
}

// Open what answers a question, if the other questions that it answers are guessed too.
function openAnswers(key) {
  for (const answer of answersOf(key)) answer.open ||= answer.dataset.key.split(" ").every(isGuessed);
}

// -- reading an answer -------------------------------------------------------------------------------------------------
function baseUnit(unit) {
  const head = unit in UNITS.factors ? unit : unit.split(/[ /]/)[0];
  return head in UNITS.factors ? head : "";
}

function readOne(question, given) {
  if (!given.trim()) fail("type_first");
  const unit = baseUnit(question.unit);
  const ending = question.unit.slice(unit.length).trim();
  const text = ending && given.toLowerCase().endsWith(ending.toLowerCase()) ? given.slice(0, -ending.length) : given;
  return readNumber(text.trim(), unit, `12.3 ${question.unit}`.trim()) / UNITS.factors[unit];
}

function readRange(question, texts) {
  const [low, high] = texts.map((text) => readOne(question, text));
  if (low > high) throw new Error(words("wrong_way"));
  return [low, high];
}

// -- the form ----------------------------------------------------------------------------------------------------------
// Each maker returns the elements of a form and a function that reads them.
const FORMS = {
  number(question) {
    const field = textField(words("placeholder"));
    return [[field, unitOf(question)], () => readOne(question, field.value)];
  },
  between(question) {
    const fields = [textField(words("lowest")), textField(words("highest"))];
    const parts = [fields[0], words("between_and"), fields[1], unitOf(question)];
    return [parts, () => readRange(question, fields.map((field) => field.value))];
  },
  choice(question, key) {
    const list = element("div", { className: "rr-choices" });
    for (const [english, shown] of question.options) {
      const radio = element("input", { type: "radio", name: key, value: english });
      list.append(element("label", {}, radio, " ", shown));
    }
    const chosen = () => list.querySelector("input:checked")?.value ?? fail("choose_first");
    return [[list], chosen];
  },
  order(question) {
    const pressed = [];
    const list = element("div", { className: "rr-items" });
    const again = element("button", { type: "button", textContent: words("start_again") });
    const draw = () => {
      list.replaceChildren(...question.options.map(([english, shown]) => {
        const place = pressed.indexOf(english) + 1;
        const press = () => {
          pressed.push(english);
          draw();
          list.dispatchEvent(new Event("input", { bubbles: true })); // so that an old complaint goes away
          list.querySelector("button:enabled")?.focus();
        };
        const text = place ? `${place} · ${shown}` : shown;
        return element("button", { type: "button", textContent: text, disabled: place > 0, onclick: press });
      }));
    };
    again.onclick = () => { pressed.length = 0; draw(); };
    draw();
    const read = () => (pressed.length === question.options.length ? [...pressed]
      : fail("order_first", { count: question.options.length }));
    return [[element("p", { textContent: words("in_order") }), list, again], read];
  },
};

function textField(name) {
  const field = element("input", { type: "text", placeholder: name, autocomplete: "off", inputMode: "text" });
  field.setAttribute("aria-label", name);
  return field;
}

function unitOf(question) {
  return element("span", { textContent: ` ${question.unit} ` });
}

function ask(place, key) {
  const question = QUESTIONS[key];
  const [parts, read] = FORMS[question.form](question, key);
  const problem = element("p", { className: "rr-problem", role: "alert" });
  const none = element("button", { type: "button", textContent: words("no_idea") });
  const send = element("button", { type: "submit", className: "rr-first", textContent: words("guess") });
  const form = element("form", { className: "rr-form" }, ...parts, element("div", {}, send, " ", none), problem);
  form.onsubmit = (event) => {
    event.preventDefault();
    try {
      answered(place, key, read());
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  none.onclick = () => answered(place, key, null);
  form.oninput = () => { problem.textContent = ""; };
  place.append(form);
}

function answered(place, key, value) {
  store(key, { value, form: QUESTIONS[key].form, late: Boolean(storedGuesses()[key]?.opened) });
  show(place, key);
  openAnswers(key);
  place.querySelector(".rr-said").focus();
}

// -- the result ----------------------------------------------------------------------------------------------------------
function shownValue(question, value) {
  const inPage = (english) => question.options.find(([one]) => one === english)?.[1] ?? english;
  if (value === null) return words("no_idea");
  if (question.form === "choice") return inPage(value);
  if (question.form === "order") return value.map(inPage).join(" → ");
  return question.form === "between" ? `${formatNumber(value[0])} – ${formatNumber(value[1], question.unit)}`
    : formatNumber(value, question.unit);
}

function middle([low, high]) {
  return low > 0 && high > 0 ? Math.sqrt(low * high) : (low + high) / 2;
}

function isRight({ form, truth }, value) {
  if (form === "between") return value[0] <= truth && truth <= value[1];
  if (form === "number") return Math.abs(value - truth) <= 0.01 * Math.abs(truth);
  return JSON.stringify(value) === JSON.stringify(truth);
}

// A sentence on how far a guess is from the truth.
function verdict(question, value) {
  const { form, truth } = question;
  if (value === null || truth === null) return "";
  const right = isRight(question, value);
  if (form === "choice" || form === "order") return words(right ? "right" : form === "choice" ? "not_right" : "other_order");
  if (form === "number") return right ? words("right") : words("off", { off: howFarOff(value, truth) });
  const where = right ? "inside" : value[1] < truth ? "outside_low" : "outside_high";
  return words(where, { off: howFarOff(middle(value), truth) });
}

// Replace the form by what was guessed and how far off it is, and complete the row of the result.
function show(place, key) {
  const question = QUESTIONS[key];
  const { value, late } = storedGuesses()[key];
  const text = value === null ? words("kept_none") : words("kept", { value: shownValue(question, value) });
  const sentences = [text, verdict(question, value), late ? words("late") : ""].filter(Boolean).join(" ");
  const said = element("p", { className: "rr-said", tabIndex: -1, textContent: sentences });
  place.querySelector("form")?.remove();
  place.append(said);
  for (const row of document.querySelectorAll(`.rr-row[data-key="${key}"]`)) {
    row.prepend(element("div", {}, element("span", { textContent: words("yours") }), " ",
      element("b", { textContent: shownValue(question, value) })));
  }
  drawMine();
}

// -- my guesses ----------------------------------------------------------------------------------------------------------
// The chapter's questions that the reader has guessed, with the truth.
function drawMine() {
  const place = document.querySelector(".rr-my-guesses");
  if (!place) return;
  const all = storedGuesses();
  // Only what is guessed, because the text of a question may say the answer of another one.
  const guessed = Object.entries(QUESTIONS).filter(([key]) => isGuessed(key));
  const rows = guessed.map(([key, question]) => mineRow(question, all[key]));
  const count = rows.length;
  const numOpen = Object.keys(QUESTIONS).length - count;
  if (numOpen) rows.push(element("p", { className: "rr-none", textContent: words("open", { count: numOpen }) }));
  const title = words("mine.title", { chapter: Object.keys(QUESTIONS)[0].split(".")[0] });
  const head = element("p", {}, element("b", { textContent: title }), ` ${count} / ${count + numOpen}`);
  const legend = element("p", { className: "rr-none", textContent: words("axis") });
  const list = element("div", { className: "rr-mine" }, ...rows);
  const forget = element("button", { type: "button", textContent: words("forget"), onclick: forgetChapter });
  const form = element("div", { className: "rr-form" }, forget);
  place.replaceChildren(head, ...(list.querySelector(".rr-axis") ? [legend] : []), list, ...(count ? [form] : []));
}

// Remove the guesses of this page, so that its questions are asked again.
function forgetChapter() {
  if (!confirm(words("forget_sure"))) return;
  kept = Object.fromEntries(Object.entries(storedGuesses()).filter(([key]) => !(key in QUESTIONS)));
  try {
    localStorage.setItem(STORE, JSON.stringify(kept));
  } catch {
    // Storage is switched off: nothing was stored.
  }
  location.reload();
}

function mineRow(question, entry) {
  const row = element("div", { className: "rr-guessed" }, element("p", { textContent: question.text }));
  const told = [shownValue(question, entry.value), verdict(question, entry.value)].filter(Boolean).join(" · ");
  row.append(element("p", { textContent: `${words("yours")}: ${told}` }));
  row.append(element("p", { textContent: `${words("mine.truth")}: ${shownValue(question, question.truth)}` }));
  const ratio = entry.value === null || typeof question.truth !== "number" ? 0
    : (question.form === "between" ? middle(entry.value) : entry.value) / question.truth;
  if (ratio > 0) row.append(axis(ratio));
  return row;
}

// The guess divided by the truth on a logarithmic axis from 1/100 to 100, the truth in the middle.
function axis(ratio) {
  const place = 50 + 25 * Math.max(-2, Math.min(2, Math.log10(ratio)));
  const axisLine = element("div", { className: "rr-axis" });
  axisLine.setAttribute("aria-hidden", "true"); // the text above says the same
  axisLine.append(element("i", { className: "rr-truth" }), element("i", { className: "rr-dot", style: `left:${place}%` }));
  return axisLine;
}

// -- start ---------------------------------------------------------------------------------------------------------------
for (const place of document.querySelectorAll(".rr-guess[data-key]")) {
  const key = place.dataset.key;
  if (isGuessed(key)) {
    show(place, key);
    openAnswers(key);
  } else {
    ask(place, key);
  }
}
// Who opens an answer without a guess may still guess, but the guess is late.
for (const answer of document.querySelectorAll("details.rr-answer")) {
  answer.addEventListener("toggle", () => {
    const unanswered = answer.dataset.key.split(" ").filter((key) => !isGuessed(key));
    if (answer.open) unanswered.forEach((key) => store(key, { opened: true }));
  });
}
drawMine();
