// The cluster of a past moment (a ClusterView of the API) in the shape of a snapshot of the live stream.

import { giveColours } from "../words.js";

export function pastState(view) {
  const jobs = Object.fromEntries(view.running.map((job) => [job.id, { ...job, progress: job.progress || {}, mine: true }]));
  const nodes = view.nodes.map((node) => ({
    ...node,
    state: node.ready ? (node.drained ? "drained" : "ready") : "lost",
    gpus: (node.gpus || []).map((gpu) => gpuThen(gpu, jobs)),
  }));
  giveColours(nodes.flatMap((node) => node.gpus.flatMap((gpu) => gpu.holders.map((held) => held.job))));
  return { ...view, nodes, jobs, findings: view.findings || [], past: true };
}

// Use and speed are live figures: of the past they are unknown here.
function gpuThen(gpu, jobs) {
  const holders = gpu.sharing?.length ? gpu.sharing : gpu.held_by ? [gpu.held_by] : [];
  return {
    index: gpu.index, model: gpu.model, memory: gpu.memory, emulated: Boolean(gpu.emulated),
    used: null, memory_used: null, slow: null, quarantined: false, out: "",
    holders: holders.map((held) => ({
      job: held.job_id, name: held.name || jobs[held.job_id]?.name || "", share: held.share ? held.share.request / 1000 : 1,
    })),
  };
}
