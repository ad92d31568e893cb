// What may be done with a job: cancel, requeue, change its size or its priority. Each asks before it does it.

import { ApiError, api } from "../api.js";
import { clean, clear, h } from "../dom.js";
import { toast } from "../notice.js";
import { toYaml } from "./yaml.js";
import { FINAL } from "../words.js";

const PRIORITY_MAX = 1000;
const TITLES = { cancel: "Cancel", requeue: "Requeue", scale: "Change the size", priority: "Change the priority" };

// Which actions make sense in the job's state. The gateway decides in the end.
export function actionsOf(job) {
  const over = FINAL.has(job.state);
  const sized = Object.values(job.size ?? {}).some((role) => role.least < role.most);
  return [
    ...(job.state !== "queued" ? ["requeue"] : []),
    ...(!over && sized ? ["scale"] : []),
    ...(!over ? ["priority", "cancel"] : []),
  ];
}

// The buttons: `{element, update(job, isPast)}`; `done` is called after the gateway accepted something.
export function actionBar(done) {
  const element = h("div", { class: "row actions", role: "group", ariaLabel: "Actions" });
  let drawn = "";
  let current = null;
  return {
    element,
    update(job, isPast) {
      current = job;
      const names = isPast ? [] : actionsOf(job);
      const now = JSON.stringify([names, isPast]);
      if (now === drawn) return;
      drawn = now;
      clear(element).append(
        ...names.map((name) => h("button", { type: "button", class: name === "cancel" ? "danger" : null, onclick: () => open(name, current, done) }, TITLES[name])),
        h("a", { class: "button", href: `#/new?from=${encodeURIComponent(job.id)}` }, "Clone"),
        h("button", { type: "button", onclick: () => copyYaml(current) }, "Copy as YAML"),
        isPast ? h("span", { class: "muted" }, "This is the past. Go back to now to change the job.") : "");
    },
  };
}

async function copyYaml(job) {
  const written = toYaml(job.spec);
  try {
    await navigator.clipboard.writeText(written);
    toast("The specification is copied.");
  } catch {
    const box = h("textarea", { rows: "16", readonly: true, ariaLabel: "Specification as YAML", value: written });
    const dialog = h("dialog", { class: "panel", ariaLabel: "Specification as YAML" },
      h("p", {}, "This browser does not let the page copy: copy it from here."), box,
      h("div", { class: "row end" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    box.select();
  }
}

function open(name, job, done) {
  const question = questionOf(name, job);
  const refused = h("p", { class: "bad", role: "alert" });
  const yes = h("button", { type: "submit", class: name === "cancel" ? "danger" : "primary" }, question.yes);
  const form = h("form", { onsubmit: submit },
    h("h2", { id: "action-title" }, `${TITLES[name]}: `, h("bdi", {}, clean(job.name))),
    h("p", {}, question.sentence), ...question.fields, refused,
    h("div", { class: "row end" }, h("button", { type: "button", onclick: () => dialog.close() }, "Back"), yes));
  const dialog = h("dialog", { class: "panel action", ariaLabelledby: "action-title" }, form);
  dialog.addEventListener("close", () => dialog.remove()); // the browser gives focus back to the button
  document.body.append(dialog);
  dialog.showModal();

  async function submit(event) {
    event.preventDefault();
    if (yes.disabled) return;
    yes.disabled = true;
    refused.textContent = "";
    for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
    try {
      const body = question.body?.();
      const accepted = await api(`/v1/jobs/${encodeURIComponent(job.id)}/${name}`, { method: "POST", ...(body ? { body } : {}) });
      dialog.close();
      toast(`${TITLES[name]} is accepted; the scheduler will do it. The job was ${clean(accepted?.state ?? job.state)}.`);
      done();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const field = form.querySelector(`[data-field="${CSS.escape(error.field)}"]`);
      field?.setAttribute("aria-invalid", "true");
      refused.textContent = error.field ? `${clean(error.field)}: ${clean(error.reason)}` : clean(error.reason);
      field?.focus();
    } finally {
      yes.disabled = false;
    }
  }
}

function questionOf(name, job) {
  if (name === "cancel") {
    const sentence = job.state === "queued" ? "It is taken out of the queue." : "All its ranks are stopped, and it gives its GPUs back.";
    return { sentence, fields: [], yes: "Cancel the job" };
  }
  if (name === "requeue") {
    const sentence = FINAL.has(job.state) ? "It runs again, in its next epoch." : "All its ranks are stopped, and it goes back to the queue.";
    return { sentence, fields: [], yes: "Requeue" };
  }
  if (name === "priority") {
    const input = h("input", { id: "new-priority", type: "number", step: "1", min: String(-PRIORITY_MAX), max: String(PRIORITY_MAX), required: true, value: String(job.priority), dataset: { field: "priority" } });
    return {
      sentence: `Jobs of higher priority are served first, from ${-PRIORITY_MAX} to ${PRIORITY_MAX}.`,
      fields: [h("label", { htmlFor: "new-priority" }, "Priority"), input],
      body: () => ({ priority: Number(input.value) }),
      yes: "Change it",
    };
  }
  const inputs = Object.entries(job.size).filter(([, role]) => role.least < role.most).map(([role, size], place) => {
    const input = h("input", { id: `size-${place}`, type: "number", step: "1", min: String(size.least), max: String(size.most), required: true, value: String(size.wanted), dataset: { field: `size.${role}` } });
    return { role, input, label: h("label", { htmlFor: `size-${place}` }, `${clean(role)} (${size.least} … ${size.most})`) };
  });
  return {
    sentence: "Replicas that it should have from now on. It grows as soon as there is room.",
    fields: inputs.flatMap(({ label, input }) => [label, input]),
    body: () => ({ size: Object.fromEntries(inputs.map(({ role, input }) => [role, Number(input.value)])) }),
    yes: "Change it",
  };
}
