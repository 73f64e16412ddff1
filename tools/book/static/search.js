// The search shows pieces of pages. Folded answers stay out of them.
"use strict";

const whole = Search.htmlToText;
Search.htmlToText = (html, anchor) => {
  const page = new DOMParser().parseFromString(html, "text/html");
  page.querySelectorAll("details").forEach((answer) => answer.remove());
  return whole(page.documentElement.outerHTML, anchor);
};
