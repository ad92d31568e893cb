// The files that a job left on the node of one rank: results and checkpoints, each with its download.

import { ApiError, api, request } from "../api.js";
import { ago, bytes, clean, clear, h, moment } from "../dom.js";
import { toast } from "../notice.js";
import { failureText, table } from "../parts.js";
import { commandToCopy, emptyView, shellWord } from "../words.js";

const BROWSER_MAX = 256 << 20; // a larger file is fetched by the command line: a browser would keep it in memory
const SHOWN_MAX = 1000;

export function filesView(jobId) {
  const said = h("p", { class: "muted", role: "status" });
  const list = h("div");
  const element = h("section", { class: "panel" }, h("h2", {}, "Files"), said, list);
  let asked = "";
  let reading = new AbortController();

  // `job`: asked for again when another try began, or the state changed.
  async function update(job, now) {
    const key = `${job.epoch} ${job.state}`;
    if (key === asked) return;
    asked = key;
    reading.abort();
    reading = new AbortController();
    const { signal } = reading;
    if (job.state === "queued" && !job.epoch) return show("", [emptyView("No files yet", "A job writes files to WEFT_RESULTS and WEFT_CHECKPOINT_DIR once it runs.")]);
    try {
      const view = await api(`/v1/jobs/${encodeURIComponent(jobId)}/files?limit=${SHOWN_MAX}`, { signal });
      const files = view.files ?? [];
      if (!files.length) return show("", [emptyView("No files", "The job wrote nothing to WEFT_RESULTS or WEFT_CHECKPOINT_DIR.")]);
      const rows = files.map((file) => [
        h("code", {}, clean(file.path)), bytes(file.bytes), h("span", { title: moment(file.modified_at) }, ago(now - file.modified_at)),
        file.bytes <= BROWSER_MAX ? h("button", { type: "button", class: "small", ariaLabel: `Download ${clean(file.path)}`, onclick: () => download(file) }, "Download") : h("span", { class: "muted" }, "by weft cp"),
      ]);
      show(`On ${clean(view.node)}, of rank ${view.rank ?? 0}.${view.next ? ` The first ${SHOWN_MAX} are shown.` : ""}`,
        [table("Files of the job", ["File", "#Size", "Written", ""], rows), commandToCopy(`weft cp ${shellWord(`${clean(job.name)}:${clean(files[0].path)}`)} .`)]);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 404) return show("", [emptyView("No files", `${clean(error.reason)}.`)]); // the node has none
      asked = "";
      if (!(error instanceof ApiError)) throw error;
      show(`The files cannot be listed: ${failureText(error)}`, []);
    }
  }

  function show(sentence, parts) {
    said.textContent = sentence;
    clear(list).append(...parts);
  }

  async function download(file) {
    try {
      const response = await request(`/v1/jobs/${encodeURIComponent(jobId)}/file?path=${encodeURIComponent(file.path)}`, { signal: reading.signal });
      save(await response.blob(), file.path.split("/").at(-1));
    } catch (error) {
      if (error.name !== "AbortError") toast(`The file could not be read: ${failureText(error)}`, "bad");
    }
  }

  return { element, update, close: () => reading.abort() };
}

// Has the browser store bytes as a file.
export function save(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: clean(name) });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
