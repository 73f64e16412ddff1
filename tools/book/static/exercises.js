// The exercises: an editor in place of the stub's code. Python judges what it holds (tools/book/page/exercises.py).
"use strict";

const checkLimit = { seconds: 20 }; // that a check may compute; then its worker is ended, because a loop may never end
const INDENT = "    ";

for (const place of document.querySelectorAll(".rr-exercise")) mountExercise(place);

function mountExercise(place) {
  const key = place.dataset.key;
  const stub = place.querySelector("pre");
  const field = editor(`rr-code-${key}`, storedCode(key) ?? stub.textContent);
  const label = element("label", { htmlFor: field.id, textContent: words("exercise.code", { key }) });
  const hint = element("p", { id: `${field.id}-keys`, className: "rr-keys", textContent: words("exercise.keys") });
  field.setAttribute("aria-describedby", hint.id);
  const check = element("button", { type: "button", className: "rr-first", textContent: words("exercise.check") });
  const again = element("button", { type: "button", textContent: words("exercise.again") });
  const progress = element("p", { className: "rr-progress" });
  const output = element("pre", { className: "rr-output" });
  for (const one of [progress, output]) one.setAttribute("role", "status");

  field.oninput = () => storeCode(key, field.value === stub.textContent ? null : field.value);
  again.onclick = () => {
    if (field.value !== stub.textContent && !confirm(words("exercise.again_sure"))) return;
    field.focus();
    field.select();
    type(field, stub.textContent);
    output.textContent = "";
  };
  check.onclick = async () => {
    if (check.ariaDisabled === "true") return;
    check.ariaDisabled = "true"; // and not `disabled`, which would take the focus away
    output.textContent = "";
    output.classList.remove("rr-passed");
    try {
      const judged = await judge(key, field.value, (text) => { progress.textContent = text; });
      output.textContent = judged.printed + judged.text.replace(/ · [^·\n]*seed=\d+[^·\n]*/, ""); // of no use in a page
      output.classList.toggle("rr-passed", judged.passed);
    } catch (error) {
      output.textContent = error.message;
    }
    progress.textContent = "";
    check.ariaDisabled = "false";
  };
  stub.hidden = true;
  place.append(label, field, hint, element("div", { className: "rr-buttons" }, check, " ", again), progress, output);
}

// The result of a check. Only the check itself is limited in time, and not the loading of Python.
async function judge(key, source, onProgress) {
  await python.call("exercises.load", [key], onProgress);
  onProgress(words("exercise.checking"));
  let isTooLong = false;
  const timer = setTimeout(() => { isTooLong = true; python.stop(); }, 1000 * checkLimit.seconds);
  try {
    return await python.call("exercises.judge", [key, source, LANGUAGE], onProgress);
  } catch (error) {
    throw isTooLong ? new Error(words("exercise.too_long", { key, seconds: checkLimit.seconds })) : error;
  } finally {
    clearTimeout(timer);
  }
}

// A field for code in which Tab indents. After Escape, Tab leaves it, so that the keyboard is not caught in it.
function editor(id, text) {
  const rows = text.split("\n").length + 3;
  const field = element("textarea", { id, value: text, rows, wrap: "soft", spellcheck: false, autocomplete: "off" });
  field.setAttribute("autocapitalize", "off");
  let isLeaving = false;
  field.onkeydown = (event) => {
    if (event.key === "Tab" && !event.shiftKey && !isLeaving) {
      event.preventDefault();
      type(field, INDENT);
    }
    if (event.key !== "Shift") isLeaving = event.key === "Escape";
  };
  field.onblur = () => { isLeaving = false; };
  return field;
}

// Replace what is selected, as typing does, so that the browser can undo it.
function type(field, text) {
  if (document.execCommand("insertText", false, text)) return; // the only way that keeps undo; it fires `input`
  field.setRangeText(text, field.selectionStart, field.selectionEnd, "end");
  field.dispatchEvent(new Event("input"));
}

// -- what is kept ------------------------------------------------------------------------------------------------------
function storedCode(key) {
  try {
    return localStorage.getItem(`rr-code-${key}`);
  } catch {
    return null; // storage is switched off
  }
}

// code: null where it is the stub's.
function storeCode(key, code) {
  try {
    if (code === null) localStorage.removeItem(`rr-code-${key}`);
    else localStorage.setItem(`rr-code-${key}`, code);
  } catch {
    // Storage is switched off: the code stays in the field until the page is left.
  }
}
