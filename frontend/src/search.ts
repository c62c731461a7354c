/** What somebody means who types a few words. The server searches by the same rule (src/vario/runs/views/name_search.py). */

import { useEffect, useState } from "preact/hooks";

/** Whether a target's name has what was typed: words in any order, `*` for anything. */
export function matches(target: string, only: string): boolean {
  const name = target.toLowerCase();
  return only
    .toLowerCase()
    .split(/\s+/)
    .every((word) => {
      if (!word.includes("*")) return name.includes(word);
      const pattern = word.split("*").map((text) => text.replace(/[.+?^${}()|[\]\\]/g, "\\$&"));
      return new RegExp(`^${pattern.join(".*")}$`).test(name);
    });
}

/** A text once nobody has typed for a moment: not every letter is worth a request. */
export function useTyped(text: string, milliseconds = 250): string {
  const [typed, setTyped] = useState(text);
  useEffect(() => {
    const wait = window.setTimeout(() => setTyped(text), milliseconds);
    return () => window.clearTimeout(wait);
  }, [text, milliseconds]);
  return typed;
}
