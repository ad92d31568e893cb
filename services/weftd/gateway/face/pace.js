// Work that follows a stream, at most so often: bursts of news become one piece of work.

// Returns a function that asks for `work`: it is done at once if the last time is `milliseconds` ago, else then.
// `.end()` forgets what was asked for.
export function paced(work, milliseconds) {
  let timer = null;
  let last = -Infinity;
  function ask() {
    if (timer !== null) return;
    timer = setTimeout(() => {
      timer = null;
      last = performance.now();
      work();
    }, Math.max(0, last + milliseconds - performance.now()));
  }
  ask.end = () => {
    clearTimeout(timer);
    timer = null;
  };
  return ask;
}
