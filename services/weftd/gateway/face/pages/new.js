// A new job: a form and its YAML side by side. The YAML is what is submitted; the gateway checks it as it is typed, and what
// it reads fills the form. A change in the form is written into the YAML.

import { clean, clear, clock, count, h } from "../dom.js";
import { toYaml } from "../job/yaml.js";
import { toast } from "../notice.js";
import { failureText } from "../parts.js";
import { shellWord } from "../words.js";

const CHECK_MS = 350; // after the last key
const YAML = "application/yaml";

// What a template changes; `{name: [words, specification]}`.
const TEMPLATES = {
  train: ["Training on one GPU", { name: "train", command: ["python", "train.py"], roles: { worker: { gpus: 1, cpus: 4, memory: "16GiB" } } }],
  torchrun: ["Training on several GPUs (torchrun)", {
    name: "train-wide", command: ["torchrun", "train.py"], checkpoints: { on_stop: true },
    roles: { worker: { replicas: { want: 2 }, gpus: 1, cpus: 4, memory: "16GiB" } },
  }],
  sweep: ["Sweep of a parameter", {
    name: "tune", command: ["python", "train.py", "--lr", "{lr}"], sweep: { lr: [0.001, 0.003, 0.01] }, roles: { worker: { gpus: 1, cpus: 4, memory: "16GiB" } },
  }],
  service: ["Service (vLLM)", {
    name: "chat", kind: "inference", command: ["sh", "-c", "vllm serve facebook/opt-125m --port $WEFT_PORT"],
    service: { ready: "/health" }, objective: { latency: "500ms", rate: 5 },
    roles: { worker: { replicas: { min: 0, want: 1, max: 4 }, gpus: 1, cpus: 4, memory: "16GiB" } },
  }],
  notebook: ["Notebook", { name: "notebook", kind: "notebook", command: ["jupyter", "lab", "--ip", "0.0.0.0"], roles: { worker: { gpus: 1, cpus: 4, memory: "16GiB" } } }],
  batch: ["Batch job without a GPU", { name: "batch", kind: "batch", command: ["python", "prepare.py"], roles: { worker: { cpus: 2, memory: "4GiB" } } }],
};
const FIRST = "train";

export function mount(root, { api, params, go }) {
  let spec = null; // as the gateway read the YAML last; null: it does not read it
  let timer = null;
  let checking = new AbortController();
  let key = newKey(); // of this submission: a second click makes no second job

  const said = h("p", { class: "muted", role: "status" });
  const mistakes = h("ul", { class: "mistakes" });
  const notes = h("ul", { class: "muted" });
  const yaml = h("textarea", {
    id: "new-yaml", rows: "24", spellcheck: "false", autocomplete: "off", ariaDescribedby: "new-said", dataset: { field: "" }, oninput: typed,
  });
  said.id = "new-said";
  const submit = h("button", { type: "submit", class: "primary", disabled: true }, "Submit");
  const template = h("select", { id: "new-template", onchange: () => begin(TEMPLATES[template.value][1]) },
    Object.entries(TEMPLATES).map(([name, [words]]) => h("option", { value: name }, words)));
  const fields = fieldsOf(change);
  const form = h("form", { onsubmit: send },
    h("div", { class: "page-head" }, h("h1", {}, "New job"), h("span", { class: "grow" }),
      h("label", { htmlFor: "new-template" }, "From a template"), template, submit),
    h("div", { class: "new-job" },
      h("section", { class: "panel" }, h("h2", {}, "Form"), h("div", { class: "new-fields" }, fields.all.map((one) => one.element))),
      h("section", { class: "panel" }, h("label", { htmlFor: "new-yaml" }, "Job file (YAML)"), yaml, said, h("div", { role: "alert" }, mistakes), notes)));
  root.append(h("div", { class: "stack" }, form));
  if (params.from) clone(params.from);
  else {
    template.value = Object.hasOwn(TEMPLATES, params.template) ? params.template : FIRST;
    begin(TEMPLATES[template.value][1]);
  }

  async function clone(id) {
    said.textContent = "reading the job …";
    try {
      const job = await api(`/v1/jobs/${encodeURIComponent(id)}`);
      const { element, scheduled, ...copied } = job.spec;
      begin(copied);
    } catch (error) {
      said.textContent = `The job cannot be copied: ${failureText(error)}`;
      begin(TEMPLATES[FIRST][1]);
    }
  }

  function begin(wanted) {
    spec = wanted;
    yaml.value = toYaml(wanted);
    fields.show(wanted);
    check(false);
  }

  // The form changed: it is written into what the gateway read last.
  function change() {
    if (!spec) return;
    spec = fields.write(spec);
    yaml.value = toYaml(spec);
    check(true);
  }

  function typed() {
    check(true);
  }

  function check(later) {
    clearTimeout(timer);
    checking.abort();
    submit.disabled = true;
    timer = setTimeout(ask, later ? CHECK_MS : 0);
  }

  async function ask() {
    checking = new AbortController();
    const { signal } = checking;
    said.textContent = "checking …";
    try {
      const found = await api("/v1/jobs/check", { method: "POST", body: yaml.value, type: YAML, signal });
      spec = found.spec;
      fields.show(spec);
      showMistakes([]);
      said.textContent = found.elements ? `Correct: an array of ${count(found.elements, "job")}.` : "Correct.";
      clear(notes).append(...(found.notes ?? []).map((note) => h("li", {}, clean(note))));
      submit.disabled = false;
    } catch (error) {
      if (signal.aborted) return;
      spec = error.status === 400 || error.status === 413 || error.status === 422 ? spec : null;
      const found = error.mistakes?.length ? error.mistakes : [{ field: error.field, reason: error.reason ?? error.message }];
      said.textContent = `${count(found.length, "mistake")} to mend:`;
      clear(notes);
      showMistakes(found);
    }
    yaml.setAttribute("aria-invalid", String(submit.disabled));
  }

  function showMistakes(found) {
    fields.mark(found.map((one) => one.field ?? ""));
    clear(mistakes).append(...found.map((one) => h("li", {}, one.field ? h("code", {}, clean(one.field)) : "", one.field ? ": " : "", clean(one.reason))));
  }

  async function send(event) {
    event.preventDefault();
    if (submit.disabled) return;
    submit.disabled = true;
    try {
      const made = await api("/v1/jobs", { method: "POST", body: yaml.value, type: YAML, headers: { "Idempotency-Key": key } });
      key = newKey();
      if (made.next_run_at) {
        toast(`${clean(made.name)} is scheduled: its next run is due ${clock(made.next_run_at)}.`);
        return go("#/");
      }
      toast(made.elements ? `${clean(made.name)} is submitted: ${count(made.elements, "job")}.` : `${clean(made.name)} is submitted.`);
      go(made.elements ? `#/queue?text=${encodeURIComponent(`${made.id}-`)}` : `#/job/${encodeURIComponent(made.id)}`);
    } catch (error) {
      submit.disabled = false;
      showMistakes(error.mistakes?.length ? error.mistakes : [{ field: error.field, reason: error.reason ?? error.message }]);
    }
  }

  return {
    unmount() {
      clearTimeout(timer);
      checking.abort();
    },
  };
}

// The fields of the form. Each reads a part of a specification and writes it back; those of a role: of its only one.
function fieldsOf(change) {
  const role = (spec) => Object.keys(spec.roles ?? { worker: {} })[0];
  const ofRole = (spec) => spec.roles?.[role(spec)] ?? {};
  const withRole = (spec, part) => ({ ...spec, roles: { ...(spec.roles ?? {}), [role(spec)]: without({ ...ofRole(spec), ...part }) } });
  const number = (value) => (value === "" ? undefined : Number(value));
  const input = (attributes) => h("input", { autocomplete: "off", spellcheck: "false", ...attributes });
  const all = [
    one("Name", "name", input({ type: "text", required: true, placeholder: "my-training" }), (spec) => spec.name, (spec, value) => ({ ...spec, name: value })),
    one("Kind", "kind", h("select", {}, ["training", "inference", "notebook", "batch"].map((kind) => h("option", { value: kind }, kind))),
      (spec) => spec.kind ?? "training", (spec, value) => ({ ...spec, kind: value })),
    one("Command", "command", h("textarea", { rows: "3", spellcheck: "false" }), (spec) => joined(spec.command), (spec, value) => ({ ...spec, command: words(value) }), "as a shell reads it; quote words with spaces"),
    one("Image", "image", input({ type: "text", placeholder: "none: as a process" }), (spec) => spec.image ?? "", (spec, value) => without({ ...spec, image: value || undefined }), "of the container"),
    one("GPUs", "gpus", input({ type: "number", min: "0", max: "64" }), (spec) => ofRole(spec).gpus ?? 0, (spec, value) => withRole(spec, { gpus: number(value) || undefined }), "of each replica"),
    one("Replicas", "replicas", input({ type: "number", min: "0" }), (spec) => ofRole(spec).replicas?.want ?? 1,
      (spec, value) => withRole(spec, { replicas: { ...ofRole(spec).replicas, want: number(value) ?? 1 } })),
    one("CPUs", "cpus", input({ type: "number", min: "0.001", step: "any" }), (spec) => ofRole(spec).cpus ?? 1, (spec, value) => withRole(spec, { cpus: number(value) }), "of each replica"),
    one("Memory", "memory", input({ type: "text" }), (spec) => ofRole(spec).memory ?? "1GiB", (spec, value) => withRole(spec, { memory: value || undefined }), "of each replica, such as 16GiB"),
    one("Priority", "priority", input({ type: "number", min: "-1000", max: "1000" }), (spec) => spec.priority ?? 0, (spec, value) => without({ ...spec, priority: number(value) || undefined }), "higher is served first"),
    one("Time limit", "time_limit", input({ type: "text", placeholder: "none" }), (spec) => spec.time_limit ?? "", (spec, value) => without({ ...spec, time_limit: value || undefined }), "such as 2h30m; a limit lets a job start sooner"),
  ];

  function one(label, name, control, read, write, hint = "") {
    control.id = `new-${name}`;
    control.addEventListener("input", change);
    if (hint) control.setAttribute("aria-describedby", `${control.id}-hint`);
    return {
      name, control, read, write,
      element: h("div", { class: "field" }, h("label", { htmlFor: control.id }, label), control, hint && h("small", { class: "muted", id: `${control.id}-hint` }, hint)),
    };
  }

  return {
    all,
    // The field that is typed in stays as it is: its reader's words need not be the gateway's yet.
    show(spec) {
      for (const { control, read } of all) {
        const value = String(read(spec) ?? "");
        if (control !== document.activeElement && control.value !== value) control.value = value;
      }
    },
    write: (spec) => all.reduce((made, { control, read, write }) => (control.value === String(read(made) ?? "") ? made : write(made, control.value)), spec),
    mark(wrong) {
      for (const { name, control } of all) {
        if (wrong.some((field) => field.split(/[.[]/).includes(name))) control.setAttribute("aria-invalid", "true");
        else control.removeAttribute("aria-invalid");
      }
    },
  };
}

function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((each) => each.toString(16).padStart(2, "0")).join("");
}

function without(object) {
  return Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined));
}

// A command as one line, and back: words with spaces or quotes are quoted as for a shell.
export function joined(command) {
  return (command ?? []).map((word) => (/^[\w@%+=:,./{}$-]+$/.test(word) ? word : shellWord(word))).join(" ");
}

export function words(line) {
  const found = [];
  let word = null;
  let quote = "";
  for (let at = 0; at < line.length; at += 1) {
    const letter = line[at];
    if (quote) {
      if (letter === quote) quote = "";
      else if (letter === "\\" && quote === '"' && /["\\$`]/.test(line[at + 1] ?? "")) word += line[at += 1];
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      word ??= "";
    } else if (letter === "\\" && at + 1 < line.length) word = (word ?? "") + line[at += 1];
    else if (/\s/.test(letter)) {
      if (word !== null) found.push(word);
      word = null;
    } else word = (word ?? "") + letter;
  }
  if (word !== null) found.push(word);
  return found;
}
