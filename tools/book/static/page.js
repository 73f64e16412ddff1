// What every script of a page uses: texts in the page's language, and elements.
"use strict";

// A text of the page's language with {name} replaced by values.name, and {name!r} by the same in quotation marks.
function words(name, values = {}) {
  return WORDS[name].replace(/\{(\w+)(!r)?\}/g, (_, key, quoted) => (quoted ? `'${values[key]}'` : values[key]));
}

function fail(name, values) {
  throw new Error(words(name, values));
}

// An element with properties and children, such as element("p", { className: "rr-note" }, "text").
function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Code, tables and pictures that are wider than the page scroll by keyboard, too.
function letTheKeyboardScroll() {
  for (const each of document.querySelectorAll("article pre, article table, .table-wrapper, .rr-scroll")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
    if (each.matches(".rr-scroll")) tellWide(each, each.scrollWidth > each.clientWidth);
  }
}

// A line below a picture that is wider than the screen.
function tellWide(picture, isWide) {
  const told = picture.nextElementSibling?.matches(".rr-wide") ? picture.nextElementSibling : null;
  if (isWide && !told) picture.after(element("p", { className: "rr-wide", textContent: words("wide") }));
  if (!isWide) told?.remove();
}

addEventListener("load", letTheKeyboardScroll);
addEventListener("resize", letTheKeyboardScroll);
addEventListener("toggle", letTheKeyboardScroll, { capture: true }); // what was folded has had no width until now
