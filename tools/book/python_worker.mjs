// The worker of a page: loads Pyodide and the course's package, then answers calls, one after the other.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const ready = start();
ready.catch(() => {}); // each call reports the failure

async function start() {
  postMessage({ progress: "loading" });
  const archive = fetch(new URL("course.zip", import.meta.url)).then((answer) => answer.arrayBuffer());
  archive.catch(() => {}); // awaited below
  const pyodide = await loadPyodide();
  postMessage({ progress: "starting" });
  pyodide.unpackArchive(await archive, "zip", { extractDir: "/course" });
  return pyodide.runPython("import sys; sys.path[:0] = ['/course/page', '/course']\nimport calls\ncalls.call");
}

onmessage = async ({ data: { number, name, args } }) => {
  let call;
  try {
    call = await ready;
  } catch {
    postMessage({ number, error: "Python could not be loaded. Check the connection, then reload the page." });
    return;
  }
  postMessage({ number, ...JSON.parse(call(name, JSON.stringify(args))) });
};
