// The reader of the API's description, as whoever is signed in, in the colours of the page.
import { isDark, onScheme } from "./scheme.js";

const dress = () => document.documentElement.classList.toggle("dark-mode", isDark());
dress();
onScheme(dress);

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#reference",
  deepLinking: true,
  requestInterceptor(request) {
    request.headers["x-leasehold-page"] = "1";
    return request;
  },
});
