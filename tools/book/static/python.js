// Python in the page: one worker runs Pyodide for all explorers, exercises and questions of the page. Nothing is loaded
// before the first call, and no call blocks the page.
"use strict";

const python = {
  worker: null,
  waiting: new Map(), // number of a call -> {resolve, reject, onProgress}
  numCalls: 0,

  // Call a function of tools/book/page/, such as "explorers.turn", with arguments that JSON can write. Returns a promise
  // of what it returns; it rejects with an Error whose message is a sentence. onProgress is told what is being loaded.
  call(name, args, onProgress = () => {}) {
    this.worker ??= this.start();
    const number = this.numCalls++;
    return new Promise((resolve, reject) => {
      this.waiting.set(number, { resolve, reject, onProgress });
      this.worker.postMessage({ number, name, args });
    });
  },

  start() {
    const worker = new Worker(new URL("python_worker.mjs", PYTHON_AT), { type: "module" });
    worker.onmessage = ({ data }) => {
      if (data.progress) {
        for (const call of this.waiting.values()) call.onProgress(words(`python.${data.progress}`));
        return;
      }
      const call = this.waiting.get(data.number);
      this.waiting.delete(data.number);
      if (data.error === undefined) call?.resolve(data.value);
      else call?.reject(new Error(data.error));
    };
    worker.onerror = () => this.fail(words("python.failed"));
    return worker;
  },

  // End the worker, for example because a learner's loop never ends. The next call starts a new one.
  stop() {
    this.fail(words("python.stopped"));
  },

  fail(sentence) {
    this.worker?.terminate();
    this.worker = null;
    const calls = [...this.waiting.values()];
    this.waiting.clear();
    for (const call of calls) call.reject(new Error(sentence));
  },
};

// The folder of the worker and of Pyodide, which both languages share.
const PYTHON_AT = new URL(PYTHON_FOLDER, document.currentScript.src);
