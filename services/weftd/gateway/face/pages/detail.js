// Below the queue: why the job under the cursor waits, and what would help. Asked for once the cursor rests on it.

import { clear, h } from "../dom.js";
import { jobLink } from "../words.js";

const REST_MS = 300;

export function queueDetail({ api, live, time }) {
  const element = h("section", { class: "queue-detail", ariaLabel: "The chosen job", hidden: true });
  let shown = ""; // the id of the job
  let timer = null;
  let request = new AbortController();

  // `row`: of the queue, or null.
  function show(row) {
    const id = time.at === null && row ? row.id : ""; // what would help is known of now only
    if (id === shown) return;
    end();
    shown = id;
    element.hidden = !id;
    if (id) timer = setTimeout(() => load(row), REST_MS);
  }

  async function load(row) {
    request = new AbortController();
    const { signal } = request;
    try {
      const [told, { reasonsView }] = await Promise.all([
        api(`/v1/jobs/${encodeURIComponent(row.id)}/explain`, { signal }), import("../job/reasons.js"),
      ]);
      if (!signal.aborted) clear(element).append(h("h2", {}, jobLink(row.id, row.name)), h("div", {}, reasonsView(told, live.now())));
    } catch (error) {
      if (!signal.aborted) clear(element).append(h("p", { class: "bad" }, `The gateway does not explain this job: ${error.message}`));
    }
  }

  function end() {
    clearTimeout(timer);
    request.abort();
  }

  return { element, show, end };
}
