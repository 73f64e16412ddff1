// The explorers: the build has put their first picture into the page, with the state of their dials as JSON. A move of a
// dial asks Python for the new state (tools/book/page/explorers.py), and only what has changed is replaced.
"use strict";

// Each maker takes a control and a function for a new value. It returns the element, and a function that shows a state.
const CONTROLS = {
  slider(control, turn) {
    const input = element("input", { type: "range", min: 0, step: 1 });
    const output = element("output", {});
    const read = () => Number(input.value);
    let options = control.options;
    const showText = () => {
      output.textContent = options[read()];
      input.setAttribute("aria-valuetext", options[read()]);
    };
    input.oninput = () => { showText(); turn(read()); };
    return field(control, input, output, (now) => {
      options = now.options;
      input.max = options.length - 1;
      input.value = now.value;
      showText();
    });
  },

  list(control, turn) {
    const input = element("select", { onchange: () => turn(input.selectedIndex) });
    return field(control, input, "", (now) => {
      if (input.options.length !== now.options.length || now.options.some((text, i) => input.options[i].text !== text)) {
        input.replaceChildren(...now.options.map((text) => element("option", { textContent: text })));
      }
      input.selectedIndex = now.value;
    });
  },

  buttons(control, turn) {
    const list = element("fieldset", { className: "rr-dial rr-buttons", title: control.tooltip });
    list.append(element("legend", { textContent: control.label }));
    const radios = control.options.map((text, index) => {
      const radio = element("input", { type: "radio", name: control.name + Math.random(), onchange: () => turn(index) });
      list.append(element("label", {}, radio, " ", text));
      return radio;
    });
    const group = radios[0]?.name;
    for (const radio of radios) radio.name = group;
    const show = (now) => {
      list.hidden = now.hidden;
      list.disabled = now.disabled;
      radios.forEach((radio, index) => { radio.checked = index === now.value; });
    };
    return { element: list, show };
  },

  checkbox(control, turn) {
    const input = element("input", { type: "checkbox", onchange: () => turn(input.checked) });
    return field(control, input, "", (now) => { input.checked = now.value; });
  },

  number(control, turn) {
    const input = element("input", { type: "number", min: control.min, max: control.max, step: "any" });
    input.onchange = () => { if (input.value !== "") turn(Number(input.value)); };
    return field(control, input, "", (now) => { if (document.activeElement !== input) input.value = now.value; });
  },

  button(control, turn) {
    const press = element("button", { type: "button", className: "rr-dial", title: control.tooltip, onclick: () => turn(null) });
    const show = (now) => {
      press.textContent = now.label;
      press.disabled = now.disabled;
      press.hidden = now.hidden;
    };
    return { element: press, show };
  },

  steps(control, turn) {
    const input = element("input", { type: "range", min: control.min, step: 1 });
    const output = element("output", {});
    const showText = () => { output.textContent = `${input.value} / ${input.max}`; };
    const move = (by) => {
      input.value = Number(input.value) + by;
      showText();
      turn(Number(input.value));
    };
    input.oninput = () => move(0);
    const buttons = [[-1, "previous"], [1, "next"]].map(([by, name]) => {
      const press = element("button", { type: "button", textContent: words(`step.${name}`), onclick: () => move(by) });
      press.setAttribute("aria-label", words(`step.the_${name}`));
      return press;
    });
    const made = field(control, input, output, (now) => {
      for (const press of buttons) press.disabled = now.disabled;
      input.max = now.max;
      input.value = now.value;
      showText();
    });
    made.element.prepend(...buttons);
    made.element.classList.add("rr-steps");
    return made;
  },
};

// A label with an input. show: shows a state in the input.
function field(control, input, output, show) {
  const name = element("span", { className: "rr-name", textContent: control.label });
  const dial = element("div", { className: "rr-dial", title: control.tooltip }, element("label", {}, name, " ", input), " ", output);
  return {
    element: dial,
    show(now) {
      input.disabled = now.disabled;
      dial.hidden = now.hidden;
      show(now);
    },
  };
}

function groupOf(heading) {
  const group = element("div", { className: "rr-group" });
  if (heading) group.append(element("p", { className: "rr-heading", textContent: heading }));
  return group;
}

function rowOf(cells, number) {
  const row = element("tr", {});
  cells.forEach((text, column) => {
    const isHead = number === 0 || column === 0;
    const cell = element(isHead ? "th" : "td", { textContent: text });
    if (isHead) cell.scope = number === 0 ? "col" : "row";
    row.append(cell);
  });
  return row;
}

for (const [number, place] of document.querySelectorAll(".rr-explorer").entries()) {
  mountExplorer(place, `explorer-${number}`);
}

function mountExplorer(place, key) {
  const part = (name) => place.querySelector(`.rr-${name}`);
  let state = JSON.parse(part("state").textContent);
  const progress = element("p", { className: "rr-progress" });
  progress.setAttribute("role", "status");
  const fields = new Map(); // name of a control -> its functions
  const groups = new Map(); // heading -> the element that holds its controls
  const dials = element("div", { className: "rr-dials" });
  for (const control of state.controls) {
    const made = CONTROLS[control.kind](control, (value) => turn(control.name, value));
    fields.set(control.name, made);
    if (!groups.has(control.group)) {
      groups.set(control.group, groupOf(control.group));
      dials.append(groups.get(control.group));
    }
    made.element.dataset.control = control.name;
    groups.get(control.group).append(made.element);
  }
  place.prepend(part("sentence"), dials, progress);
  part("picture").addEventListener("click", press);
  part("picture").addEventListener("keydown", pressKey);

  // While Python computes, further moves wait; of the moves of one control only the last counts.
  const moves = new Map(); // name of a control -> its value
  let isBusy = false;
  show();

  async function turn(name, value) {
    moves.delete(name);
    moves.set(name, value);
    await work();
  }

  async function work() {
    if (isBusy) return;
    isBusy = true;
    place.setAttribute("aria-busy", "true");
    while (moves.size) {
      const [name, value] = moves.entries().next().value;
      moves.delete(name);
      await ask("explorers.turn", name, value);
    }
    place.removeAttribute("aria-busy");
    isBusy = false;
  }

  async function ask(call, ...rest) {
    const values = Object.fromEntries(state.controls.map((control) => [control.name, control.value]));
    try {
      const args = [key, place.dataset.source, LANGUAGE, values, ...rest];
      state = await python.call(call, args, (text) => { progress.textContent = text; });
      progress.textContent = "";
      show();
    } catch (error) {
      progress.textContent = error.message;
    }
  }

  // Parts of some pictures can be chosen: by a click, or by the arrows and Enter.
  async function press(event) {
    const pressed = event.target.closest("[data-pick]");
    if (!pressed || isBusy) return;
    event.preventDefault();
    const { pick } = pressed.dataset;
    await ask("explorers.press", pick);
    part("picture").querySelector(`[data-pick="${CSS.escape(pick)}"]`)?.focus({ preventScroll: true });
  }

  function pressKey(event) {
    if (event.key === "Enter" || event.key === " ") press(event);
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const all = [...part("picture").querySelectorAll("[data-pick]")];
    const here = all.indexOf(event.target.closest("[data-pick]"));
    if (!by || here < 0) return;
    event.preventDefault();
    all[Math.min(Math.max(here + by, 0), all.length - 1)].focus();
  }

  // Show the state. A control that the reader has moved meanwhile keeps what they chose.
  function show() {
    for (const control of state.controls) {
      if (!moves.has(control.name)) fields.get(control.name).show(control);
    }
    for (const group of groups.values()) group.hidden = !group.querySelector(".rr-dial:not([hidden])");
    const sentence = part("sentence");
    if (sentence.textContent !== state.sentence) sentence.textContent = state.sentence;
    const height = Math.max(parseFloat(sentence.style.minHeight) || 0, sentence.offsetHeight); // so that nothing jumps
    if (height && innerWidth > 600) sentence.style.minHeight = `${height}px`;
    sentence.setAttribute("role", state.is_problem ? "alert" : "status");
    part("picture").classList.toggle("rr-pale", state.is_problem);
    part("picture").inert = state.is_problem;
    if (state.svg) part("picture").innerHTML = state.svg; // the first picture is in the page, and not in the state
    part("numbers").hidden = state.rows.length === 0;
    part("numbers").querySelector("table").replaceChildren(...state.rows.map(rowOf));
  }
}
