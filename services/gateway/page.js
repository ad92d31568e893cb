"use strict";
const SHOWN_MAX = 200000;
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
for (const form of document.querySelectorAll("form")) {
  let running = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) { running.abort(); return; }
    const shown = form.parentElement.querySelector(".answer");
    const said = form.querySelector("output");
    const button = form.querySelector("button");
    let path = form.dataset.path;
    const query = new URLSearchParams();
    for (const input of form.querySelectorAll("input")) {
      if (input.dataset.in === "path") path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
      else if (input.value) query.set(input.name, input.value);
    }
    const headers = {};
    const token = document.getElementById("token").value.trim();
    if (token) headers.Authorization = `Bearer ${token}`;
    const body = form.querySelector("textarea");
    if (body) headers["Content-Type"] = body.value.trim().startsWith("{") ? "application/json" : "application/yaml";
    running = new AbortController();
    button.textContent = "Stop";
    shown.hidden = false;
    shown.textContent = "";
    try {
      const response = await fetch(path + (query.size ? `?${query}` : ""), {
        method: form.dataset.method, headers, body: body ? body.value : undefined, signal: running.signal,
      });
      said.textContent = `${response.status} ${response.statusText}`;
      const text = new TextDecoder();
      for await (const chunk of chunks(response.body)) {
        shown.textContent = (shown.textContent + text.decode(chunk, { stream: true })).slice(-SHOWN_MAX);
      }
      if ((response.headers.get("Content-Type") || "").includes("json")) {
        shown.textContent = JSON.stringify(JSON.parse(shown.textContent), null, 2);
      }
    } catch (error) {
      if (error.name !== "AbortError") said.textContent = String(error);
    }
    running = null;
    button.textContent = "Send";
  });
}
async function* chunks(stream) {
  if (!stream) return;
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}
