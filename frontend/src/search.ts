/** What is typed into search boxes. The server searches by the same rule (src/vario/runs/views/name_search.py). */

import { useEffect, useState } from "preact/hooks";

/** One syntax in every search box: shown where there is room for it. */
export const SYNTAX = "Words in any order; * and ? as in file names; re: for a regular expression";

/** Whether a search finds a name: words in any order, globs with `*` and `?`, or `re:` and a regular expression. */
export function matches(name: string, text: string): boolean {
  return matchesAny([name], text);
}

/** Whether a search finds a thing with several names: each word in any of them. */
export function matchesAny(names: readonly string[], text: string): boolean {
  if (text.startsWith("re:")) {
    const expression = compiled(text.slice(3));
    return expression !== null && names.some((name) => expression.test(name));
  }
  const known = names.map((name) => name.toLowerCase());
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => {
      if (!/[*?]/.test(word)) return known.some((name) => name.includes(word));
      const pattern = word
        .replace(/[.+^${}()|[\]\\]/g, "\\$&")
        .replaceAll("*", ".*")
        .replaceAll("?", ".");
      return known.some((name) => new RegExp(`^${pattern}$`, "s").test(name));
    });
}

let last: { text: string; expression: RegExp | null } = { text: "", expression: null };

/** One that is not valid, as while it is typed, finds nothing. */
function compiled(text: string): RegExp | null {
  if (last.text === text && last.expression) return last.expression;
  try {
    last = { text, expression: new RegExp(text, "i") };
  } catch {
    last = { text, expression: null };
  }
  return last.expression;
}

/** Debounce a text, so that not every letter triggers a request. */
export function useTyped(text: string, milliseconds = 250): string {
  const [typed, setTyped] = useState(text);
  useEffect(() => {
    const wait = window.setTimeout(() => setTyped(text), milliseconds);
    return () => window.clearTimeout(wait);
  }, [text, milliseconds]);
  return typed;
}
