/** A value that parts of the page share, and the hook that follows it. */

import { useEffect, useState } from "preact/hooks";

export interface Store<Value> {
  get(): Value;
  set(value: Value): void;
  follow(changed: () => void): () => void;
}

export function createStore<Value>(start: Value): Store<Value> {
  let value = start;
  const followers = new Set<() => void>();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      [...followers].forEach((changed) => changed());
    },
    follow(changed) {
      followers.add(changed);
      return () => followers.delete(changed);
    },
  };
}

export function useStore<Value>(store: Store<Value>): Value {
  const [value, show] = useState(store.get());
  useEffect(() => {
    show(store.get());
    return store.follow(() => show(store.get()));
  }, [store]);
  return value;
}
