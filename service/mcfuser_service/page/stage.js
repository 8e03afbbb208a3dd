// What a job is doing, in words.

const STAGES = {
  start: "Starting",
  import: "Reading the model",
  measure: "Measuring",
  compile: "Compiling",
  rebuild: "Building kernels anew",
  build: "Building the module",
  check: "Comparing with onnxruntime",
  done: "Finishing",
};

export function isOver(job) {
  return ["done", "failed", "cancelled"].includes(job.state);
}

export function nameOf(job) {
  return job.name ?? `Job ${job.id.slice(0, 8)}`;
}

// The stage of a running job: "Measuring chain 2 of 5".
export function stageOf(job) {
  const progress = job.progress;
  if (!progress) return job.stage || "Starting";
  const words = STAGES[progress.stage] ?? progress.stage;
  const chain = progress.chain;
  return chain ? `${words} chain ${chain.number} of ${chain.of}` : words;
}
