// Plays the talks of a page: the quiz, a worked interview or a round. Python (tools/book/page/talks.py) yields the steps:
// what is told, the next question, and a document at the end. What the learner answers goes into a progress file, whose
// text stays in this browser. Nothing of Python is loaded before the first press of "Start".
"use strict";

// -- the progress file ---------------------------------------------------------------------------------------------------
const progressFile = {
  STORE: "rank-by-rank.progress",
  kept: null, // the text where the browser stores nothing

  read() {
    if (this.kept !== null) return this.kept;
    try {
      return localStorage.getItem(this.STORE) ?? "";
    } catch {
      return ""; // storage is switched off
    }
  },

  // Add lines. Another tab may have added others since the last time, so the text is read again.
  add(lines) {
    if (!lines) return;
    const text = this.read() + lines;
    try {
      localStorage.setItem(this.STORE, text);
    } catch {
      this.kept = text;
    }
  },
};

// Offer a text as a file.
function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000); // once the download has begun
}

// The part of a page in which the progress file is exported and imported.
function progressPart() {
  const said = element("p", {});
  said.setAttribute("role", "status");
  const say = (name, values) => { said.textContent = words(`progress.${name}`, values); };
  const save = element("button", { type: "button", textContent: words("progress.export") });
  save.onclick = () => {
    if (progressFile.read()) download("progress.jsonl", progressFile.read());
    else say("empty");
  };
  const input = element("input", { type: "file", accept: ".jsonl,.json,.txt" });
  input.onchange = async () => {
    try {
      const given = await input.files[0].text();
      const args = [progressFile.read(), given];
      const found = await python.call("talks.merge", args, (text) => { said.textContent = text; });
      progressFile.add(found.added);
      const isOurs = found.num_added + found.num_known > 0;
      const counts = { added: found.num_added, known: found.num_known, unreadable: found.num_unreadable };
      say(isOurs ? "imported" : "wrong_file", counts);
    } catch (error) {
      said.textContent = error.message;
    }
    input.value = ""; // so that the same file can be chosen again
  };
  const where = element("p", {}, ...marked(words("progress.where")));
  const label = element("label", {}, words("progress.import"), " ", input);
  const title = element("summary", { textContent: words("progress.title") });
  return element("details", { className: "rr-progress-file rr-form" }, title, where, save, label, said);
}

// -- texts ---------------------------------------------------------------------------------------------------------------
// A text in which `code` and **bold** are marked, as nodes.
function marked(text) {
  return text.split(/(`[^`]+`|\*\*.+?\*\*)/s).map((piece) => {
    if (piece.startsWith("`") && piece.length > 2) return element("code", { textContent: piece.slice(1, -1) });
    if (piece.startsWith("**") && piece.length > 4) return element("b", {}, ...marked(piece.slice(2, -2)));
    return piece;
  });
}

function paragraphs(text) {
  return text.trim().split(/\n\s*\n/).filter(Boolean).map((one) => element("p", {}, ...marked(one)));
}

function tableOf({ rows, has_head: hasHead }) {
  const lines = rows.map((cells, number) => {
    const name = hasHead && number === 0 ? "th" : "td";
    return element("tr", {}, ...cells.map((cell) => element(name, {}, ...marked(cell))));
  });
  return element("table", {}, element("tbody", {}, ...lines));
}

// The address of a notebook's cell as that of its page; "" for a lab, which has none.
function pageAddress(address) {
  if (address.includes("labs/")) return "";
  return address.includes("://") ? address : address.replace(/\.ipynb/, ".html").replace("#cell-id=", "#cell-");
}

// -- the parts of a question or an answer --------------------------------------------------------------------------------
function partOf(part) {
  const isTurn = ["interviewer", "candidate", "own"].includes(part.name);
  const label = element("b", { textContent: part.label + (part.label && !isTurn ? words("quiz.colon") : "") });
  const texts = part.items.length ? part.items : [part.text];
  const body = texts.flatMap(paragraphs);
  if (part.name === "question") body.unshift(hint(words("talk.belongs")));
  if (part.rows.length) body.push(tableOf(part));
  if (part.link) {
    const address = pageAddress(part.link);
    const place = address ? element("a", { href: address, textContent: part.text }) : part.text;
    return element("p", { className: "rr-link" }, label, place);
  }
  if (part.name === "code") {
    const code = element("pre", { textContent: part.text, tabIndex: 0 });
    return element("details", {}, element("summary", { textContent: part.label }), code);
  }
  if (part.is_folded) return element("details", {}, element("summary", { textContent: part.label }), ...body);
  return element("div", { className: `rr-part rr-${part.name}` }, ...(part.label ? [label] : []), ...body);
}

// -- the forms of a question ---------------------------------------------------------------------------------------------
// Each maker takes the question and `send(value, action)`. It returns the elements; `read`, the value that is sent when
// the form is submitted; and `first`, what takes the keyboard's focus (the whole question if there is none).
const ASK_FORMS = {
  ready: () => ({ elements: [], read: () => "" }),
  pause: (ask, send, chosen) => ({ elements: chosenOptions(ask.options, chosen), read: () => "" }),

  choice(ask, send) {
    return { elements: [optionButtons(ask, send, "rr-items rr-options"), hint(words("talk.numbers"))] };
  },

  rating(ask, send) {
    return { elements: [element("p", { textContent: words("sitting.rate") }), optionButtons(ask, send, "")] };
  },

  number: oneLine,
  text: oneLine,

  notes(ask, send) {
    const field = element("textarea", { rows: 3, placeholder: words("dialogue.own") });
    field.setAttribute("aria-label", words("dialogue.your_turn"));
    field.onkeydown = (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return; // composing: Chinese is being typed
      event.preventDefault();
      send(field.value);
    };
    const title = element("p", {}, element("b", { textContent: words("dialogue.your_turn") }));
    return { elements: [title, field, hint(words("talk.notes"))], read: () => field.value, first: field };
  },

  // Lines to mark. A reason that was typed is sent before the next reply.
  lines(ask, send) {
    const list = element("div", { className: "rr-lines" });
    ask.code.split("\n").forEach((text, index) => {
      const line = index + 1;
      const isMarked = line in ask.marks;
      const press = () => (isMarked ? send(line, "unmark") : send([line, ""], "mark"));
      const button = element("button", { type: "button", disabled: ask.fixed.includes(line), onclick: press });
      button.append(element("span", { textContent: line }), text || " ");
      button.setAttribute("aria-pressed", isMarked);
      button.dataset.place = line;
      list.append(button);
    });
    const reasons = Object.entries(ask.marks).map(([line, why]) => reasonField(Number(line), why));
    const how = element("p", { textContent: words("round.view.mark") });
    const unsent = () => reasons.filter(({ input, why }) => input.value.trim() !== why)
      .map(({ input, line }) => [line, input.value]);
    return { elements: [how, list, ...reasons.map(({ label }) => label)], read: () => "", unsent,
      first: list.querySelector("button:enabled") };
  },

  agree(ask) {
    const boxes = ask.options.map((option) => element("input", { type: "checkbox", value: option.value }));
    const elements = ask.options.flatMap((option, index) => [
      ...paragraphs(option.details), element("label", {}, boxes[index], " ", option.label)]);
    const read = () => boxes.filter((box) => box.checked).map((box) => box.value);
    return { elements, read, first: boxes[0] };
  },
};

function oneLine(ask) {
  const field = textField(ask.question);
  field.placeholder = ask.form === "number" ? words("placeholder") : "";
  if (ask.form === "text") field.className = "rr-long";
  return { elements: [field, ` ${ask.unit} `], read: () => field.value, first: field };
}

// The options of a question that was answered, with what was chosen in bold.
function chosenOptions(options, chosen) {
  const items = options.filter(({ value }) => /^[a-z]$/.test(value)).map(({ value, label }) => {
    const name = value === chosen ? "b" : "span";
    return element("li", {}, element(name, {}, `${value}) `, ...marked(label)));
  });
  return items.length ? [element("ul", { className: "rr-answered" }, ...items)] : [];
}

function hint(text) {
  return element("p", { className: "rr-hint", textContent: text });
}

// Buttons that can also be chosen by their letter or their number.
function optionButtons(ask, send, className) {
  const buttons = ask.options.map((option, index) => {
    const button = element("button", { type: "button", onclick: () => send(option.value) });
    const letter = /^[a-z]$/.test(option.value) ? option.value : "";
    button.append(element("span", { className: "rr-key", textContent: letter || index + 1 }), " ", ...marked(option.label));
    button.dataset.digit = index + 1;
    button.dataset.letter = letter;
    return button;
  });
  return element("div", { className }, ...buttons);
}

function reasonField(line, why) {
  const input = element("input", { type: "text", value: why, className: "rr-long", autocomplete: "off" });
  // Enter in this field must not hand in the round.
  input.onkeydown = (event) => { if (event.key === "Enter") event.preventDefault(); };
  return { line, why, input, label: element("label", {}, words("round.view.why", { line }), " ", input) };
}

// -- the clock -----------------------------------------------------------------------------------------------------------
function minutesAndSeconds(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

function clockText({ limit, began, ended }) {
  const used = (ended ?? Date.now() / 1000) - began;
  const state = ended ? "ended" : used > limit ? "over" : "running";
  const shown = { ended: used, over: used - limit, running: limit - used }[state];
  return `${minutesAndSeconds(shown)} ${words(`sitting.clock.${state}`, { limit: minutesAndSeconds(limit) })}`;
}

// -- the player ----------------------------------------------------------------------------------------------------------
// What the form with the button "Start" says, as options of the talk in Python.
const TALK_OPTIONS = {
  quiz: ({ topic, count, which }) => (
    { topics: topic ? [topic] : [], count: Number(count), only_due: which === "due", ahead: which === "ahead" }),
  dialogue: ({ name }) => ({ name }),
  round: ({ name }) => ({ name }),
};

for (const [number, place] of document.querySelectorAll(".rr-talk").entries()) mountTalk(place, `talk-${number}`);

function mountTalk(place, key) {
  const { kind } = place.dataset;
  const start = place.querySelector(".rr-start");
  const about = place.querySelector("p");
  const progress = element("p", { className: "rr-progress" });
  progress.setAttribute("role", "status");
  const heading = element("p", { className: "rr-place" });
  const clock = element("p", { className: "rr-clock" });
  const context = element("div", {});
  const question = element("div", { className: "rr-question", id: `${key}-question` });
  const told = element("div", { className: "rr-told" });
  told.setAttribute("aria-live", "polite");
  const parts = element("div", { className: "rr-parts" });
  const form = element("form", { className: "rr-form" });
  const shown = element("div", { className: "rr-document" });
  const sitting = element("div", { className: "rr-sitting", hidden: true, tabIndex: -1 },
    heading, clock, context, question, told, parts, form, shown);
  sitting.setAttribute("role", "group");
  sitting.setAttribute("aria-labelledby", question.id);
  place.append(progress, sitting);
  if (kind === "quiz") place.append(progressPart());
  start.hidden = false;
  start.onsubmit = begin;
  sitting.onkeydown = pressKey;

  let ask = null; // the present question
  let controls = {};
  let isBusy = false;
  let worker = null; // the worker in which the talk was begun
  let ticks = 0;
  let sent = ""; // the last reply

  async function begin(event) {
    event.preventDefault();
    const options = TALK_OPTIONS[kind](Object.fromEntries(new FormData(start)));
    await take("talks.start", key, kind, options, LANGUAGE, progressFile.read());
    worker = python.worker;
  }

  async function send(value, action = "") {
    if (isBusy || !ask) return;
    sent = value;
    const unsent = controls.unsent?.() ?? [];
    if (python.worker !== worker) {
      end(words("talk.lost"));
      return;
    }
    for (const reason of unsent) await python.call("talks.reply", [key, reason, "mark"]);
    await take("talks.reply", key, value, action);
  }

  // Call Python, and show the steps that it returns. Further presses are ignored meanwhile.
  async function take(call, ...args) {
    if (isBusy) return;
    isBusy = true;
    place.setAttribute("aria-busy", "true");
    const focused = document.activeElement?.dataset.place;
    try {
      const { steps, added } = await python.call(call, args, (text) => { progress.textContent = text; });
      progress.textContent = "";
      progressFile.add(added);
      if (added && progressFile.kept !== null) progress.textContent = words("progress.not_stored");
      show(steps, focused);
    } catch (error) {
      end(error.message);
    }
    place.removeAttribute("aria-busy");
    isBusy = false;
  }

  function end(sentence) {
    progress.textContent = sentence;
    ask = null;
    form.replaceChildren();
    about.hidden = start.hidden = false;
  }

  function show(steps, focused) {
    const before = ask;
    const next = steps.at(-1);
    const tells = steps.filter((step) => step.step === "Tell");
    const documents = steps.filter((step) => step.step === "Show");
    ask = next?.step === "Ask" ? next : null;
    sitting.hidden = false;
    about.hidden = start.hidden = Boolean(ask);
    const none = { heading: [], context: "", question: "", parts: [] };
    // At the end the last question stays with its answer, unless it was left without one.
    const isJudged = tells.some((tell) => ["right", "wrong"].includes(tell.style));
    const isLeft = !ask && before?.form !== "pause" && !isJudged;
    const current = ask ?? { ...none, ...(isLeft ? {} : before), problem: "", clock: null };
    const headings = tells.map((tell) => tell.heading).filter((texts) => texts.join(""));
    const title = current.heading.length && ask ? current.heading : headings.at(-1) ?? current.heading;
    heading.textContent = title.join(" · ").replaceAll("_", " ");
    context.replaceChildren(...paragraphs(current.context));
    question.replaceChildren(...paragraphs(current.question));
    // At the end the summary stands below the answer to the last question.
    const last = ask ? tells.length : tells.findIndex((tell) => ["right", "wrong"].includes(tell.style)) + 1;
    told.replaceChildren(...tells.slice(0, last).flatMap(toldOf), ...problemOf(current));
    const after = ask ? [] : tells.flatMap((tell) => tell.parts);
    showParts([...current.parts, ...after]);
    showDocuments(documents);
    shown.prepend(...tells.slice(last).flatMap(toldOf));
    if (!ask) sitting.after(start);
    showForm();
    showClock(current.clock);
    moveFocus(focused, before);
  }

  function toldOf(tell) {
    const name = ["right", "wrong", "bold", "problem"].includes(tell.style) ? `rr-${tell.style}` : "";
    return paragraphs(tell.text).map((one) => Object.assign(one, { className: name }));
  }

  function problemOf({ problem }) {
    return problem ? [element("p", { className: "rr-problem", textContent: problem })] : [];
  }

  // Parts that are already shown stay, so that what the reader has unfolded stays open.
  function showParts(all) {
    const named = new Map([...parts.children].map((one) => [one.dataset.part, one]));
    const unique = [...new Map(all.map((part) => [JSON.stringify(part), part])).entries()];
    parts.replaceChildren(...unique.map(([name, part]) => {
      const made = named.get(name) ?? partOf(part);
      made.dataset.part = name;
      return made;
    }));
  }

  function showDocuments(documents) {
    shown.replaceChildren(...documents.map(({ html, text, can_save: canSave }) => {
      const made = element("div", { innerHTML: html });
      for (const link of made.querySelectorAll("a[href]")) {
        const address = pageAddress(link.getAttribute("href"));
        if (address) link.href = address;
        else link.replaceWith(...link.childNodes);
      }
      const titles = [...made.querySelectorAll("h1, h2, h3, h4, h5, h6")];
      const level = (title) => Number(title.localName[1]);
      for (const title of titles) { // the document stands in a section of the page, whose heading has level 2
        title.setAttribute("aria-level", level(title) - level(titles[0]) + 3);
      }
      if (!canSave) return made;
      const save = element("button", { type: "button", textContent: words("sitting.mock.save") });
      save.onclick = () => download(`${kind}.md`, text);
      return element("div", {}, made, element("div", { className: "rr-form" }, save));
    }));
  }

  function showForm() {
    const typed = ask?.problem ? form.querySelector("input")?.value : undefined;
    controls = ask ? ASK_FORMS[ask.form](ask, send, sent) : {};
    form.onsubmit = (event) => {
      event.preventDefault();
      const value = controls.read?.();
      if (ask?.form === "number" && !value.trim()) told.replaceChildren(...problemOf({ problem: words("type_first") }));
      else if (value !== undefined) send(value);
    };
    form.replaceChildren(...(ask ? [...controls.elements, buttonsOf()] : []));
    if (typed !== undefined && controls.first) controls.first.value = typed; // to be corrected
  }

  // The button that sends, those of the actions, and one to stop.
  function buttonsOf() {
    const buttons = element("div", {});
    if (controls.read) {
      controls.submit = element("button", { type: "submit", className: "rr-first", textContent: ask.submit });
      buttons.append(controls.submit);
    }
    const stop = { value: "finish", label: words("talk.stop") };
    const actions = ask.actions.some((one) => one.value === stop.value) ? ask.actions : [...ask.actions, stop];
    for (const { value, label } of actions) {
      const press = () => send(value === "all" ? controls.read() : "", value);
      buttons.append(element("button", { type: "button", textContent: label, onclick: press }));
    }
    return buttons;
  }

  function showClock(state) {
    clearInterval(ticks);
    const tick = () => {
      clock.textContent = clockText(state);
      if (!state.ended && Math.floor(Date.now() / 1000 - state.began) === state.limit) {
        progress.textContent = words("sitting.clock.up");
      }
    };
    clock.hidden = !state?.began;
    if (clock.hidden) return;
    tick();
    if (!state.ended) ticks = setInterval(tick, 1000);
  }

  // The keyboard goes to the next question, without scrolling past what is to be read.
  function moveFocus(focused, before) {
    const samePlace = focused && form.querySelector(`[data-place="${focused}"]`);
    const first = samePlace || controls.first || controls.submit || sitting; // at the end a further Enter starts nothing
    first.focus({ preventScroll: true });
    if (samePlace) return;
    const turn = kind === "dialogue" && before ? parts.lastElementChild : null;
    (turn ?? heading).scrollIntoView({ block: "nearest" });
  }

  // A digit chooses an option, unless something is being typed.
  function pressKey(event) {
    const isTyping = event.target.matches("input, textarea, select");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const pressed = CSS.escape(event.key.toLowerCase());
    const button = form.querySelector(`[data-digit="${pressed}"], [data-letter="${pressed}"]`);
    if (!button) return;
    event.preventDefault();
    button.click();
  }
}
