// Loads the dashboard. A file that does not come over a bad line is asked for again; until all have come, a sentence says so.

const WAITS_MS = [200, 1000, 3000, 10000, 30000]; // the last one again and again

async function boot() {
  for (let tries = 0; ; tries += 1) {
    try {
      await import("./app.js");
      return;
    } catch (error) {
      console.warn(`the dashboard did not load: ${error}`);
      const said = document.createElement("p");
      said.setAttribute("role", "alert");
      said.textContent = "A part of the dashboard did not come from the gateway; trying again.";
      document.getElementById("app").replaceChildren(said);
      await new Promise((done) => setTimeout(done, WAITS_MS[Math.min(tries, WAITS_MS.length - 1)]));
    }
  }
}

boot();
