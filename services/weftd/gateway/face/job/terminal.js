// A terminal in the job: a shell of one of its ranks, over the WebSocket that `weft shell` uses (docs/shell.md).
//
// xterm.js is in the package only if it was built with it (deploy/terminal.py); it is loaded when a person asks for it.

import { clean, clear, h, text } from "../dom.js";
import { session } from "../session.js";

const PROTOCOL = "weft.attach";
const ALIVE_MS = 4000;
const SILENT_MS = 15_000; // the gateway sends a sign of life as often
const PIECE = 16 << 10; // bytes of input in one frame
const WINDOW = 128 << 10; // bytes of input that the session has not taken yet; more wait here
const PASTED_MAX = 4 << 20;
const [ROWS, COLUMNS_LEAST, COLUMNS_MOST] = [24, 40, 240];
const LIVE = new Set(["starting", "running", "stopping"]);

// `{element, update(job, isPast), close}`.
export function terminalView(jobId) {
  const said = h("p", { class: "muted", role: "status" });
  const rank = h("input", { id: "terminal-rank", type: "number", min: "0", value: "0", size: "5" });
  const button = h("button", { type: "button", onclick: () => (line ? line.end() : open()) }, "Open a terminal");
  const place = h("div", { class: "terminal", hidden: true });
  const element = h("section", { class: "panel", hidden: true },
    h("h2", {}, "Terminal"), h("div", { class: "row" }, h("label", { htmlFor: "terminal-rank" }, "of rank"), rank, button), said, place);
  let line = null; // the session that goes on
  let shown = null; // its terminal, or that of the one before
  let opening = false;
  let state = "";

  async function open() {
    if (opening) return;
    opening = true;
    said.textContent = "Opening a shell.";
    try {
      const Terminal = await loadTerminal();
      shown?.dispose();
      shown = line = connect(Terminal, { jobId, rank: Number(rank.value) || 0, place, said, over });
      button.textContent = "End the session";
    } catch (error) {
      console.warn(`no terminal: ${error}`);
      said.textContent = `This installation of Weft has no terminal for the browser. On the command line: weft shell ${clean(jobId)}`;
    }
    opening = false;
  }

  function over() {
    line = null;
    button.textContent = "Open a terminal";
    button.hidden = !LIVE.has(state);
    if (place.contains(document.activeElement)) button.focus();
  }

  return {
    element,
    update(job, isPast) {
      state = isPast ? "" : job.state;
      button.hidden = !LIVE.has(state) && !line;
      element.hidden = button.hidden && place.hidden;
    },
    close() {
      line?.end();
      shown?.dispose();
    },
  };
}

async function loadTerminal() {
  const folder = new URL("../xterm/", import.meta.url).pathname;
  const module = await import(`${folder}xterm.js`);
  for (const href of [`${folder}xterm.css`, new URL("terminal.css", import.meta.url).pathname]) {
    if (document.querySelector(`link[href="${href}"]`)) continue;
    const link = h("link", { rel: "stylesheet", href });
    const loaded = new Promise((done) => link.addEventListener("load", done, { once: true }));
    document.head.append(link);
    await loaded;
  }
  return module.Terminal;
}

// One session, from its first frame to its end: `{end}`. `over()` is called once.
function connect(Terminal, { jobId, rank, place, said, over }) {
  place.hidden = false;
  const terminal = new Terminal({ rows: ROWS, screenReaderMode: true, cursorBlink: false, scrollback: 5000, fontSize: 13, theme: { background: "#12151a" } });
  terminal.open(place);
  fit();
  const query = new URLSearchParams({ kind: "shell", rank, tty: "1", rows: terminal.rows, columns: terminal.cols, term: "xterm-256color" });
  const address = new URL(`/v1/jobs/${encodeURIComponent(jobId)}/attach?${query}`, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(address, [PROTOCOL, `weft.proof.${session.proof}`]);
  socket.binaryType = "arraybuffer";
  let [received, sent, taken, heardAt, ended] = [0, 0, 0, performance.now(), false];
  let queue = []; // pieces of input that were not sent yet
  let waiting = 0;
  const encoder = new TextEncoder();
  const say = (what) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(what));

  socket.onopen = () => say({});
  socket.onmessage = ({ data }) => {
    heardAt = performance.now();
    if (typeof data === "string") return hear(JSON.parse(data));
    const bytes = new Uint8Array(data, 1); // behind the stream: a terminal has one
    terminal.write(bytes, () => {
      received += bytes.length;
      say({ acked: received });
    });
  };
  socket.onclose = () => finish("The connection is closed; the shell has ended.");
  const alive = setInterval(() => {
    if (performance.now() - heardAt > SILENT_MS) socket.close();
    else say({});
  }, ALIVE_MS);

  terminal.onData((typed) => {
    const bytes = encoder.encode(typed);
    if (waiting + bytes.length > PASTED_MAX) {
      said.textContent = `More than ${PASTED_MAX >> 20} MiB wait to be sent; the last input was left out.`;
      return;
    }
    for (let at = 0; at < bytes.length; at += PIECE) queue.push(bytes.subarray(at, at + PIECE));
    waiting += bytes.length;
    flush();
  });
  terminal.onResize(({ rows, cols }) => say({ rows, columns: cols }));
  // Tab belongs to the shell, so another key leads out of the terminal.
  terminal.attachCustomKeyEventHandler((event) => {
    if (event.key !== "F6") return true;
    if (event.type === "keydown") place.closest("section").querySelector("button").focus();
    return false;
  });
  const observer = new ResizeObserver(fit);
  observer.observe(place);

  function hear(told) {
    if (told.session) {
      said.textContent = `A shell of rank ${text(told.rank ?? 0)} on ${clean(told.node)}. F6 leaves the terminal.`;
      terminal.focus();
    }
    if (Number.isFinite(told.taken)) {
      taken = told.taken;
      flush();
    }
    if (told.refused) finish(`Refused: ${clean(told.reason)}`);
    else if (told.ended) finish(told.reason ? `The shell has ended: ${clean(told.reason)}.` : `The shell has ended with status ${text(told.status ?? 0)}.`);
    else if (told.lost) finish(`The node does not answer: ${clean(told.reason)}`);
  }

  function flush() {
    while (queue.length && socket.readyState === WebSocket.OPEN && sent - taken < WINDOW) {
      const piece = queue.shift();
      socket.send(piece);
      sent += piece.length;
      waiting -= piece.length;
    }
  }

  // As many columns as the page is wide, by the width of one that is drawn.
  function fit() {
    const screen = place.querySelector(".xterm-screen");
    const width = screen?.offsetWidth / terminal.cols;
    if (!(width > 1)) return;
    const columns = Math.min(COLUMNS_MOST, Math.max(COLUMNS_LEAST, Math.floor((place.clientWidth - 24) / width)));
    if (columns !== terminal.cols) terminal.resize(columns, ROWS);
  }

  function finish(why) {
    if (ended) return;
    ended = true;
    clearInterval(alive);
    observer.disconnect();
    queue = [];
    said.textContent = why;
    socket.close();
    terminal.options.disableStdin = true;
    over();
  }

  return {
    end() {
      say({ end: true });
      finish("You ended the session.");
    },
    dispose() {
      terminal.dispose();
      clear(place).hidden = true;
    },
  };
}
